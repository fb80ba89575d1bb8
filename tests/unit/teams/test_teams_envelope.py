"""Jobs, outcomes and payloads on the wire."""

from collections.abc import Sequence
from typing import Any, TypedDict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.record_batch import NewRecord, build_batch
from dovetail.teams import Pipeline, Team
from dovetail.teams.codecs import Undecodable, Unencodable, codec_of
from dovetail.teams.envelope import (
    JOB_ID_BYTES_MAX,
    KEY_BYTES_MAX,
    PARENT,
    TO,
    Header,
    Item,
    Job,
    JobId,
    checked_id,
    is_name,
    job_of,
    place_of,
)
from dovetail.teams.outcome import (
    KIND,
    RECORD_BYTES_MAX,
    TRACEBACK_CHARACTERS_MAX,
    DeadLetter,
    Failure,
    FailureKind,
    Postponed,
    outcome_of,
)
from dovetail.teams.tasks.gathers import WITHIN_MS_MAX, Groups
from dovetail.teams.team import Policy
from dovetail.teams.workers.worker_report import GivenJob, Outcomes

#: What a topic takes in a batch, unless it is told otherwise.
BATCH_BYTES = 1_048_588

jobs = st.builds(
    Job,
    key=st.binary(min_size=1),
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
    assert Job(b"a", b"1").headers() == []
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

    children = [Job(b"c", b"", parent=job.id) for job in made if job.id]
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
    first = Job(b"a", b"job", parent=JobId("p"))
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
    letter = DeadLetter(Job(b"a", b"job", parent=JobId("p")), failure, attempts=3)
    read = outcome_of("team", dead=True, place="", key=b"a", value=b"job", headers=letter.headers())
    assert read.failure is not None
    assert (read.id, read.parent, read.payload, read.attempts) == ("a", "p", b"job", 3)
    assert read.failure.kind is FailureKind.TIMEOUT
    assert len(read.failure.reason) == 1000
    assert len(read.failure.traceback) <= TRACEBACK_CHARACTERS_MAX + 4
    full = DeadLetter(Job(b"a", b"x" * RECORD_BYTES_MAX), failure, 1)
    assert sum(len(value) for _, value in full.headers()) < 2_000


def size_of(key: bytes, value: bytes | None, headers: Sequence[Header]) -> int:
    return len(build_batch([NewRecord(2**41, key, value, list(headers))]))


@pytest.mark.parametrize("below", [0, 30, 100, 500, 2_000, 12_000])
@pytest.mark.parametrize("key_size", [1, 600_000, KEY_BYTES_MAX])
def test_whatever_a_topic_takes_ends_on_topics_of_the_same_limit(below: int, key_size: int) -> None:
    """R3, T5: a record that fills its batch, and whose function fails, stopped its team for good:
    its dead letter, or its next life, was too large for a topic with Kafka's default limit."""
    key, parent = b"k" * key_size, (PARENT, b"p" * 20)
    room = BATCH_BYTES - below - size_of(key, b"", [parent]) - 4
    payload = b"x" * room
    assert BATCH_BYTES - 4 <= size_of(key, payload, [parent]) + below <= BATCH_BYTES
    job = job_of(place="t-0-1", key=key, value=payload, headers=[parent])
    assert job.key == key

    failure = Failure(FailureKind.EXCEPTION, "\u20ac" * 5_000, "t" * 10**5)
    letter = DeadLetter(job, failure, attempts=10**6)
    assert size_of(key, payload, letter.headers()) <= BATCH_BYTES
    assert (KIND, b"exception") in letter.headers() or below < 100
    mark = [*letter.mark(), ("dovetail-partitions", b"t" * 10_000)]
    assert size_of(key, None, mark) <= BATCH_BYTES

    postponed = Postponed(job, "why", 2, 2**41)
    life = [*postponed.next_job(since_ms=2**41).headers(), (TO, b"t" * 249)]
    assert size_of(key, payload, life) <= BATCH_BYTES or not postponed.fits
    assert postponed.fits or below < 2_000


def test_marks_that_would_be_on_all_that_follows_are_bounded() -> None:
    """R3: headers of a foreign producer come out on results and jobs of other teams."""
    long = [(PARENT, b"p" * 20_000), ("traceparent", b"t" * 600), ("dovetail-attempts", b"1")]
    job = job_of(place="t-0-1", key=b"k", value=b"", headers=long)
    assert (job.parent, job.traceparent, job.attempts) == (None, None, 1)
    assert not is_name(b"k" * (KEY_BYTES_MAX + 1))
    assert not is_name(None)
    assert is_name(b"")


def test_a_result_is_measured_with_its_key() -> None:
    """R3, T5: a long key comes out on every record that follows, a spray's with its parent's."""
    scan, page = Team("scan", list), Team("page", str)
    scan.spray_to(page)
    outcomes = Outcomes(Pipeline("p", scan, page).stages()[0])

    def given(key: bytes) -> GivenJob:
        return GivenJob(0, 0, key, b"", None, False, 1, ())

    outcomes.of(given(b"k" * 100), ["x" * 990_000])
    with pytest.raises(InvalidInput, match="long keys"):
        outcomes.of(given(b"k" * 600_000), ["x" * 500_000])
    with pytest.raises(InvalidInput, match="long keys"):
        outcomes.of(given(b"k" * KEY_BYTES_MAX), ["x"])


@pytest.mark.parametrize("text", [b"0/5001/7", b"0/999999999999999999/7", b"5001/5001/7"])
def test_an_item_of_more_than_can_be_gathered_is_none(text: bytes) -> None:
    """R3: whoever may submit a job could forge one, and its gathering counted for ever."""
    assert Item.parsed(b"a", text) is None
    assert Item.parsed(b"a", b"0/5000/7") is not None


def test_an_item_that_is_awaited_for_longer_than_any_gathering_is_left_out() -> None:
    """R3: forged, it would have pinned the position of its gathering for good."""
    for item, counts in ((Item(b"a", 0, 2, WITHIN_MS_MAX + 1_000), True), (None, False)):
        assert Groups.counts(item, at_ms=1_000) == counts
    assert not Groups.counts(Item(b"a", 0, 2, 10**17), at_ms=1_000)
    assert not Groups.counts(Item(b"a", 0, 2, 999), at_ms=1_000)


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
