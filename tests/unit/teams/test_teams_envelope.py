"""Jobs, outcomes and payloads on the wire."""

from typing import Any, TypedDict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.teams.codecs import Undecodable, Unencodable, codec_of
from dovetail.teams.envelope import (
    JOB_ID_BYTES_MAX,
    Job,
    JobId,
    checked_id,
    job_of,
    place_of,
)
from dovetail.teams.outcome import (
    RECORD_BYTES_MAX,
    TRACEBACK_CHARACTERS_MAX,
    DeadLetter,
    Failure,
    FailureKind,
    Postponed,
    outcome_of,
)
from dovetail.teams.team import Policy

jobs = st.builds(
    Job,
    id=st.text(min_size=1).map(JobId),
    payload=st.binary(),
    parent=st.none() | st.text(min_size=1).map(JobId),
    attempts=st.integers(0, 10**6),
    not_before_ms=st.integers(0, 2**50),
    traceparent=st.none() | st.binary(),
)


@given(jobs)
def test_a_job_comes_back_from_its_record(job: Job) -> None:
    """T4: key, value and headers hold all of a job."""
    again = job_of(place="t-0-1", key=job.key, value=job.payload, headers=job.headers())
    assert again == job


def test_a_plain_job_has_no_headers_and_a_record_without_key_an_id() -> None:
    """T4: the place of a record is its id if nobody gave one, and stays the same."""
    assert Job(JobId("a"), b"1").headers() == []
    job = job_of(place=place_of("t", 3, 17), key=None, value=None)
    assert (job.id, job.payload) == ("t-3-17", b"")


@given(st.lists(st.tuples(st.binary(), st.integers(0, 3)), unique=True))
def test_binary_keys_stay_as_they_are(lives: list[tuple[bytes, int]]) -> None:
    """F7: each key, in each of its lives, is a job of its own and comes out unchanged."""
    made = [
        job_of(place="x", key=key, value=b"", headers=[("dovetail-attempts", b"%d" % attempts)])
        for key, attempts in lives
    ]
    assert [job.key for job in made] == [key for key, _ in lives]
    assert len({job.identity for job in made}) == len(lives)

    children = [Job(JobId("c"), b"", parent=job.id) for job in made if job.id]
    for child in children:
        again = job_of(place="x", key=b"c", value=b"", headers=child.headers())
        assert again.parent == child.parent


def test_a_key_with_a_nul_is_not_the_second_life_of_another() -> None:
    """F7: Java's serialised numbers are full of them."""
    retried = job_of(place="x", key=b"a", value=b"", headers=[("dovetail-attempts", b"1")])
    assert job_of(place="x", key=b"a\x001", value=b"").identity != retried.identity


@pytest.mark.parametrize("broken", ["a\ud800", "\udcc3\udca9"])
def test_an_id_that_no_key_has_is_refused(broken: str) -> None:
    """F7: in the caller's process, before anything is sent."""
    with pytest.raises(InvalidInput, match="surrogates"):
        checked_id(broken)
    assert checked_id(job_of(place="x", key=b"\xac\xed\x00\x05", value=b"").id)


@given(st.lists(st.tuples(st.text(), st.binary())))
def test_foreign_headers_stop_nothing(headers: list[tuple[str, bytes]]) -> None:
    """R3: whatever a foreign producer writes is a job."""
    odd = [("dovetail-attempts", b" -7"), ("dovetail-not-before", b"9" * 40), *headers]
    assert job_of(place="x", key=b"\xff", value=b"", headers=odd).attempts >= 0


def test_a_retried_job_is_no_repetition() -> None:
    """T4, T12: the second life of an id is told from the first coming twice."""
    first = Job(JobId("a"), b"job", parent=JobId("p"))
    later = Postponed(first, "why", 1, 5).next_job(since_ms=9)
    assert first.identity == b"a"
    assert later.identity != first.identity
    assert Postponed(later, "why", 2, 6).next_job(since_ms=9).identity != later.identity
    assert (later.payload, later.parent, later.attempts) == (b"job", "p", 1)


def test_ids_from_outside_are_bounded() -> None:
    """T4: ids are kept in memory for the time to live."""
    assert checked_id("é" * 256)
    for wrong in ("", "x" * (JOB_ID_BYTES_MAX + 1), 7, None, b"seven"):
        with pytest.raises(InvalidInput, match="a job id"):
            checked_id(wrong)  # type: ignore[arg-type]


def test_a_dead_letter_is_bounded_and_holds_the_job() -> None:
    """T5: whatever was raised, the letter can be written, and the job copied back."""
    failure = Failure(FailureKind.TIMEOUT, "r" * 10**6, "t" * 10**6)
    letter = DeadLetter(Job(JobId("a"), b"job", parent=JobId("p")), failure, attempts=3)
    read = outcome_of("team", dead=True, place="", key=b"a", value=b"job", headers=letter.headers())
    assert read.failure is not None
    assert (read.id, read.parent, read.payload, read.attempts) == ("a", "p", b"job", 3)
    assert read.failure.kind is FailureKind.TIMEOUT
    assert len(read.failure.reason) == 1000
    assert len(read.failure.traceback) <= TRACEBACK_CHARACTERS_MAX + 4
    full = DeadLetter(Job(JobId("a"), b"x" * RECORD_BYTES_MAX), failure, 1)
    assert sum(len(value) for _, value in full.headers()) < 2_000


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_codecs_write_plain_data(name: str) -> None:
    """T10: what goes in comes out."""
    codec = codec_of(name)
    value = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
    assert codec.decoder()(codec.encoder()(value)) == value


def test_arrow_and_raw_codecs() -> None:
    """T10: tables as Arrow, bytes as they are."""
    table = pa.table({"n": [1, 2], "s": ["a", None]})
    arrow = codec_of("arrow")
    assert arrow.decoder()(arrow.encoder()(table)).equals(table)
    raw = codec_of("raw")
    assert raw.decoder()(raw.encoder()(b"\x00\xff")) == b"\x00\xff"


class Order(TypedDict):
    total: int


@given(st.sampled_from(["json", "msgpack", "arrow"]), st.binary(max_size=64))
def test_bytes_that_are_no_payload_are_refused_by_name(name: str, data: bytes) -> None:
    """T10, R3: any bytes decode or are refused with one error; no code is run."""
    try:
        codec_of(name).decoder()(data)
    except Undecodable as error:
        assert f"not a {name} payload" in str(error)


def test_values_that_do_not_fit_are_refused() -> None:
    """T10: by type of the job, and by what the codec can write."""
    with pytest.raises(Undecodable, match="total"):
        codec_of("json").decoder(Order)(b'{"sum": 1}')
    circle: list[Any] = []
    circle.append(circle)
    for name, value in (("json", object()), ("json", circle), ("arrow", 1), ("raw", "text")):
        with pytest.raises(Unencodable, match=f"cannot be written as {name}"):
            codec_of(name).encoder()(value)


def test_backoff_doubles_up_to_its_limit() -> None:
    """T6: with jitter, so that what failed together does not come back together."""
    policy = Policy(1000, 5, 100, 500, 1, 1, 1)
    assert [policy.backoff(n, jitter=0.999999) for n in (1, 2, 3, 4)] == [99, 199, 399, 499]
    assert policy.backoff(1, jitter=0.0) == 50
