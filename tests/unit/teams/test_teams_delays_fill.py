"""The courier of delayed jobs, between a topic and a timeline that are both pretended."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers
from dovetail.teams import delays
from dovetail.teams.envelope import NOT_BEFORE, TO
from dovetail.timeline.client import Draft, Message, Retry
from dovetail.timeline.message import Handle, MessageId

DEADLINE_S = 60.0


class Record:
    """A record of the topic of delays."""

    def __init__(self, offset: int, **headers: bytes) -> None:
        self._offset, self._headers = offset, headers

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "p.delays"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> list[tuple[str, bytes]]:
        names = {"to": TO, "due": NOT_BEFORE}
        return [(names[name], value) for name, value in self._headers.items()]


class Topic:
    """A consumer that gives records from the committed position on; some commits fail."""

    def __init__(self, records: Sequence[Record], *, failing_commits: int) -> None:
        self._records, self._failing = records, failing_commits
        self._position = self.committed = 0

    def subscribe(self, _topics: list[str]) -> None:
        self._position = self.committed

    def consume(self, count: int, _timeout_s: float) -> Sequence[Record]:
        given = self._records[self._position :][:count]
        self._position += len(given)
        return given

    def commit(self, *, asynchronous: bool) -> None:
        assert not asynchronous
        if self._failing:
            self._failing -= 1
            raise KafkaException("the coordinator is away")
        self.committed = self._position

    def close(self) -> None:
        """Nothing to close."""


class PretendedTimeline:
    """Keeps keys, and refuses those of `refused`."""

    def __init__(self, refused: set[str], changed: Callable[[], None]) -> None:
        self.keys: set[str | None] = set()
        self._refused, self._changed = refused, changed

    async def schedule_many(self, drafts: Sequence[Draft]) -> None:
        self.keys |= {draft.key for draft in drafts if draft.key not in self._refused}
        self._changed()
        for draft in drafts:
            if draft.key in self._refused:
                raise InvalidInput(f"message {draft.key} is too large")


@pytest.mark.parametrize("failing_commits", [0, 2])
def test_neither_a_malformed_record_nor_a_failed_commit_ends_the_courier(
    monkeypatch: pytest.MonkeyPatch, failing_commits: int
) -> None:
    """F21: what is no delayed job is left behind, and all others are scheduled."""
    records = [
        Record(0, to=b"t", due=b"1"),
        Record(1, to=b"\xff\xfe", due=b"1"),
        Record(2, due=b"1"),
        Record(3, to=b"t", due=b"soon"),
        Record(4, to=b"t", due=b"9" * 18),
        Record(5, to=b"t", due=b"2"),
        Record(6, to=b"t", due=b"3"),
    ]
    topic, done = Topic(records, failing_commits=failing_commits), threading.Event()
    expected = {"0-0", "0-3", "0-6"}

    def look() -> None:
        if timeline.keys == expected and topic.committed == len(records):
            done.set()

    timeline = PretendedTimeline({"0-5"}, look)
    monkeypatch.setattr(delays, "_PAUSE_S", 0.01)
    monkeypatch.setattr(delays, "_POLL_S", 0.01)
    monkeypatch.setattr(delays, "Consumer", lambda _config: topic)
    commit = topic.commit

    def commit_and_look(**given: Any) -> None:
        commit(**given)
        look()

    monkeypatch.setattr(topic, "commit", commit_and_look)
    courier = delays.Courier("p", Brokers("localhost:1"))
    failures: list[str | None] = []

    async def carry() -> None:
        failures.append(courier.failure)
        await courier._fill(timeline)  # type: ignore[arg-type]

    monkeypatch.setattr(courier, "_carry", carry)
    courier.start()
    try:
        assert done.wait(DEADLINE_S)
    finally:
        courier.stop()
    assert timeline.keys == expected
    assert len(failures) == failing_commits + 1
    assert all("coordinator is away" in str(one) for one in failures[1:])
    assert courier.failure is None


@pytest.mark.parametrize(("attempt", "again_s"), [(1, 2), (3, 8), (9_999, 60)])
def test_a_team_that_cannot_be_reached_costs_its_jobs_nothing(
    attempt: int, again_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12, R5: they come again soon, for a week, before any of them is given up."""
    monkeypatch.setattr(delays, "_FLUSH_S", 0.01)
    courier = delays.Courier("p", Brokers("127.0.0.1:1"))
    (told,) = courier.deliver([due(b"v", attempt=attempt)])
    assert isinstance(told, Retry)
    assert "not acknowledged within 0.01 s" in str(told)
    assert told.after_ms == again_s * 1000
    assert delays._ATTEMPTS_MAX * delays._AGAIN_S_MAX >= 6 * 24 * 3600


def due(value: bytes, *, attempt: int = 1) -> Message:
    """A job that waited in the timeline; with no value, something else that lay there."""
    body = msgspec.msgpack.encode(delays.Waiting("dovetail.p.t.in", b"k", value, []))
    handle = Handle(MessageId(1), 1)
    return Message(
        MessageId(1), body if value else b"?", {}, None, 0, attempt, 0, "p-delays", 0, 0, handle
    )


class PretendedProducer:
    """Takes some jobs, and says of each what became of it when it is flushed."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self._told: list[Callable[[], None]] = []

    def produce(self, _topic: str, *, value: bytes, on_delivery: Any, **_: Any) -> None:
        if value == b"too large for librdkafka":
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if value == b"refused":
            refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
            self._told.append(lambda: on_delivery(refused, None))
        elif value != b"never answered":
            self.stored.append(value)
            self._told.append(lambda: on_delivery(None, None))

    def flush(self, _timeout_s: float) -> int:
        for tell in self._told:
            tell()
        return 0


def test_a_job_that_is_not_taken_does_not_bring_its_neighbours_again() -> None:
    """T12, T5: each has an outcome of its own; else they were written with every attempt at it, for
    a week, and done again as soon as their team had forgotten their ids."""
    courier, producer = delays.Courier("p", Brokers("127.0.0.1:1")), PretendedProducer()
    courier._producer = producer
    values = [b"a", b"refused", b"b", b"too large for librdkafka", b"", b"never answered", b"c"]
    outcomes = courier.deliver([due(value) for value in values])
    assert [type(one).__name__ for one in outcomes] == [
        *("NoneType", "Retry", "NoneType", "Retry", "Reject", "Retry", "NoneType")
    ]
    assert producer.stored == [b"a", b"b", b"c"]
    assert "not a delayed job" in str(outcomes[4])
