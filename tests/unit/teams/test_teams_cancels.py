"""Which jobs a cancel is for."""

import pytest

from dovetail.errors import InvalidInput
from dovetail.teams import cancelling
from dovetail.teams.cancelling import REASON_CHARACTERS_MAX, Cancels, cancel
from dovetail.teams.envelope import JOB_ID_BYTES_MAX, Job, JobId

HOUR_MS = 3_600_000


def reason(cancels: Cancels, job: Job, at_ms: int) -> str | None:
    return cancels.reason(job, at_ms=at_ms, remember_ms=HOUR_MS)


def test_a_cancel_is_for_what_came_before_it_and_is_remembered() -> None:
    """T17: before, at any time; behind, as long as the id counts as seen; items go with it."""
    cancels, day_ms = Cancels(), 24 * HOUR_MS
    job = Job(b"a", b"")
    assert reason(cancels, job, 0) is None
    cancels.note(b"a", at_ms=day_ms, reason="why")
    assert reason(cancels, job, 0) == "why"
    assert reason(cancels, job, day_ms + HOUR_MS - 1) == "why"
    assert reason(cancels, job, day_ms + HOUR_MS) is None, "the id is a new job by then"
    assert reason(cancels, Job(b"b", b""), 0) is None
    assert reason(cancels, Job(b"a/b", b""), 0) is None, "an id of its own"
    assert reason(cancels, Job(b"a/0", b"", parent=JobId("a")), 0) == "why"


def test_a_job_that_was_put_off_is_as_old_as_that() -> None:
    """T17: it is cancelled before it is due, and comes two weeks later."""
    cancels, late_ms = Cancels(), 14 * 24 * HOUR_MS
    cancels.note(b"a", at_ms=HOUR_MS, reason="")
    assert reason(cancels, Job(b"a", b"", since_ms=1), late_ms) == "cancelled"
    assert reason(cancels, Job(b"a", b""), late_ms) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """T17: the oldest go first, and one that comes again is young."""
    monkeypatch.setattr(cancelling, "CANCELS_MAX", 2)
    cancels = Cancels()
    for key in (b"a", b"b", b"a", b"c"):
        cancels.note(key, at_ms=1, reason="")
    assert len(cancels) == 2
    found = [reason(cancels, Job(name.encode(), b""), 0) for name in "abc"]
    assert found == ["cancelled", None, "cancelled"]


def test_foreign_cancels_take_no_more_memory_than_ours() -> None:
    """T17, R3: a million of them are kept, and a record may have a megabyte."""
    cancels = Cancels()
    cancels.note(b"a", at_ms=1, reason="why" * 10**6)
    assert len(reason(cancels, Job(b"a", b""), 0) or "") == REASON_CHARACTERS_MAX
    cancels.note(b"b" * (JOB_ID_BYTES_MAX + 1), at_ms=1, reason="")
    assert len(cancels) == 1


@pytest.mark.parametrize(
    ("pipeline", "job_id", "why"),
    [
        ("p", "", ""),
        ("p", "x" * 513, ""),
        ("p", "\ud800", ""),
        ("p/q", "a", ""),
        ("", "a", ""),
        ("p", "a", "\ud800"),
        ("p", "a", "x" * (REASON_CHARACTERS_MAX + 1)),
    ],
)
def test_what_is_not_an_id_is_refused_before_anything_is_sent(
    pipeline: str, job_id: str, why: str
) -> None:
    """T17: no broker is asked; there is none here."""
    with pytest.raises(InvalidInput):
        cancel(pipeline, job_id, "localhost:1", reason=why, timeout_s=0.1)
