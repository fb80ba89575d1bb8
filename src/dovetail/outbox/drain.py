"""Draining one (topic, shard): the protocol of a relay, without doing anything.

`drain` is a generator: it yields effects, receives their results, and knows neither sockets nor
clocks. The worker performs the effects; a simulation performs them on a model, and stops, kills and
wakes them at every step.

Promise: a row is deleted only after the broker acknowledged it, or in the transaction that copies
it to the dead letters; with compaction also when a newer one of its key is on its way. Rows of one
key are sent in the order in which they were read.

States of a batch:

    read ──Record──> written down ──Submit──> on its way ──Collect──> acknowledged ──Record──> gone
                          │                                  │
                          └── the next relay sends it  ──────┴── refused: halves, then one by one;
                              again, as it was written           a single one to the dead letters

Record is one transaction, checked against the term of the lock: it deletes what is done, writes
down the next batch and renews the lock. Submit sends a batch only when the one before it was
acknowledged in full. So:

- killed at any point: the written batches are sent again under the same sequence numbers, and the
  broker stores them once;
- paused, overtaken and woken: it can repeat what its successor has sent (refused as known or as out
  of sequence), but can write nothing down, because its term is old;
- refused: nothing of that partition was stored, so its numbers are free again.

A lock that comes from another relay begins with a new producer once the written batches are done:
a database that lost its last transactions (a failover to a lagging replica) would otherwise give
new messages numbers that the broker knows already, and it would take them for duplicates.

Left to others: who may drain (the lock), waiting and renewing meanwhile (the worker), and retrying
after lost answers (the sender). If the broker has forgotten a producer, batches in flight may be
stored twice, with equal ids.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dovetail.errors import InvalidInput
from dovetail.kafka.client.partitioner import Partitioner
from dovetail.outbox.batch import (
    Batch,
    Identity,
    Row,
    compact,
    cut,
    plan,
    remaining,
    spread,
)
from dovetail.outbox.message import due_ms_of, headers_from_text
from dovetail.record_batch import SEQUENCE_END


class Fate(Enum):
    """What became of the rows of a batch in one partition."""

    ACKNOWLEDGED = "acknowledged"
    #: The broker will never take it as it is; nothing of it was stored.
    REFUSED = "refused"
    #: It may or may not be stored.
    FAILED = "failed"
    #: The broker does not know the producer's numbers any more.
    FORGOTTEN = "forgotten"
    #: Not sent, because the batch before it was not acknowledged in full.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of a partition's part of a batch, with the broker's words.

    `dead` are rows of an acknowledged part that a timeline refused, each for itself.
    """

    fate: Fate
    reason: str = ""
    dead: tuple["Dead", ...] = ()


@dataclass(frozen=True, slots=True)
class Dead:
    """A row to set aside."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskPartitions:
    """Result: how many partitions the topic has."""


@dataclass(frozen=True, slots=True)
class AskIdentity:
    """Result: a new `Identity` from the broker."""


@dataclass(frozen=True, slots=True)
class Load:
    """Result: those rows of `ids` that exist."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Result: the next rows of this pass, in order; empty at its end."""


@dataclass(frozen=True, slots=True)
class Record:
    """One transaction under the lock's term; raises in the generator if the lock is lost."""

    done: list[int]
    dead: list[Dead]
    batches: list[Batch]
    identity: Identity
    sent: int
    finish: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Send when the batch before is acknowledged in full. No result yet."""

    batch: Batch
    sets: dict[int, list[Row]]


@dataclass(frozen=True, slots=True)
class Collect:
    """Result: outcomes by partition of the oldest batch that was submitted and not collected."""


Effect = AskPartitions | AskIdentity | Load | Fetch | Record | Submit | Collect
Steps = Generator[Effect, Any, None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to batch."""

    partitioner: Partitioner
    batch_bytes_max: int
    compaction: bool = False


class DeliveryFailed(Exception):
    """The broker did not take a batch; it stays written down for the next attempt."""


@dataclass(slots=True)
class _Flight:
    batch: Batch
    sets: dict[int, list[Row]]


@dataclass(slots=True)
class _Drain:
    """What the steps share."""

    options: Options
    identity: Identity
    partitions: int
    bytes_max: int
    done: list[int] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    sent: int = 0

    def record(self, batches: Sequence[Batch], *, finish: bool = False) -> Record:
        effect = Record(self.done, self.dead, list(batches), self.identity, self.sent, finish)
        self.done, self.dead, self.sent = [], [], 0
        return effect

    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that can be encoded; the others are set aside."""
        if all(row.headers is None for row in rows):
            return list(rows)
        good = []
        for row in rows:
            if row.headers is not None:
                try:
                    due_ms_of(headers_from_text(row.headers), published_ms=row.created_ms)
                except InvalidInput as error:
                    self.dead.append(Dead(row.id, str(error)))
                    continue
            good.append(row)
        return good

    def plan(self, rows: Sequence[Row], dropped: Sequence[int] = ()) -> _Flight:
        sets = spread(rows, self.partitions, self.options.partitioner)
        batch, self.identity = plan(
            rows, sets, self.identity, partitions=self.partitions, dropped=dropped
        )
        return _Flight(batch, sets)

    def give_back(self, flight: _Flight) -> None:
        """Its sequence numbers were not used: the next batch has them."""
        self.identity = self.identity.moved(
            {partition: flight.batch.first_by_partition[partition] for partition in flight.sets}
        )

    def take(self, flight: _Flight) -> None:
        """Its sequence numbers are used: the next batch begins behind them."""
        self.identity = self.identity.moved(
            {
                partition: (flight.batch.first_by_partition[partition] + len(rows)) % SEQUENCE_END
                for partition, rows in flight.sets.items()
            }
        )

    def acknowledge(self, flight: _Flight, outcomes: dict[int, Outcome]) -> None:
        self.done += flight.batch.dropped
        self.end(flight.sets, outcomes)

    def end(self, sets: dict[int, list[Row]], outcomes: dict[int, Outcome]) -> None:
        """These parts are stored; what was refused within them is set aside."""
        for partition, rows in sets.items():
            dead = outcomes[partition].dead
            self.dead += dead
            refused = {row.id for row in dead}
            self.done += [row.id for row in rows if row.id not in refused]
            self.sent += len(rows) - len(refused)


def drain(
    *, identity: Identity | None, batches: Sequence[Batch], continues: bool, options: Options
) -> Steps:
    """All effects from a lock that was taken to its end; `identity` and `batches` as written down.

    `continues` says that nobody else had the lock, and nothing was lost, since this relay wrote
    `identity`. Raises `DeliveryFailed` when the broker does not take a batch.
    """
    partitions: int = yield AskPartitions()
    if identity is None:
        identity = yield AskIdentity()
        continues = True
    state = _Drain(options, identity, partitions, options.batch_bytes_max)

    if batches:
        yield from _resume(state, batches)
        # Before the first fetch, which would show what was just sent once more.
        yield state.record([])
    if not continues:
        state.identity = yield AskIdentity()

    flight: _Flight | None = None
    buffer: deque[list[Row]] = deque()
    while True:
        if not buffer:
            fetched: list[Row] = yield Fetch()
            buffer.extend(cut(state.admit(fetched), bytes_max=state.bytes_max))
            if not fetched and flight is None:
                break

        following: _Flight | None = None
        if buffer:
            following = _plan_next(state, buffer.popleft())
            open_batches = [flight.batch] if flight else []
            yield state.record([*open_batches, following.batch])
            yield Submit(following.batch, following.sets)

        if flight is not None:
            outcomes: dict[int, Outcome] = yield Collect()
            if not _all_acknowledged(outcomes):
                yield from _recover(state, flight, outcomes, following)
                flight = None
                continue
            state.acknowledge(flight, outcomes)
        flight = following
    yield state.record([], finish=True)


def _plan_next(state: _Drain, rows: list[Row]) -> _Flight:
    dropped: list[int] = []
    if state.options.compaction:
        rows, dropped = compact(rows)
    return state.plan(rows, dropped)


def _resume(state: _Drain, batches: Sequence[Batch]) -> Steps:
    """Sends again what was written down, as it was written."""
    rows: list[Row] = yield Load([row_id for batch in batches for row_id in batch.ids])
    row_by_id = {row.id: row for row in rows}
    for at, batch in enumerate(batches):
        there = [row_by_id[row_id] for row_id in batch.ids if row_id in row_by_id]
        if len(there) != len(batch.ids):
            # Somebody has deleted rows of ours: the numbers cannot be the same any more.
            yield from _start_anew(state, there)
            return

        flight = _Flight(batch, spread(there, batch.partitions, state.options.partitioner))
        state.identity = Identity(batch.producer_id, batch.epoch, state.identity.next_by_partition)
        state.take(flight)
        yield Submit(flight.batch, flight.sets)
        outcomes: dict[int, Outcome] = yield Collect()
        if not _all_acknowledged(outcomes):
            # What is written down behind it was never sent; it is read again in its turn.
            yield from _settle(state, flight, outcomes, batches[at + 1 :])
            return
        state.acknowledge(flight, outcomes)


def _recover(
    state: _Drain, flight: _Flight, outcomes: dict[int, Outcome], following: _Flight | None
) -> Steps:
    """A batch had trouble, so the one behind it was not sent. Both are finished, one by one."""
    waiting = []
    if following is not None:
        yield Collect()
        state.give_back(following)
        waiting = [following.batch]
    yield from _settle(state, flight, outcomes, waiting)
    if following is not None:
        state.done += following.batch.dropped
        yield from _carefully(state, [_rows_of(following)])


def _settle(
    state: _Drain, flight: _Flight, outcomes: dict[int, Outcome], waiting: Sequence[Batch]
) -> Steps:
    """Brings the rows of one batch to their end, whatever the broker said of its parts.

    `waiting` are batches written down behind it that were not sent.
    """
    by_fate: dict[Fate, dict[int, list[Row]]] = {}
    for partition, rows in flight.sets.items():
        by_fate.setdefault(outcomes[partition].fate, {})[partition] = rows

    state.end(by_fate.get(Fate.ACKNOWLEDGED, {}), outcomes)
    unknown = {**by_fate.get(Fate.FAILED, {}), **by_fate.get(Fate.SKIPPED, {})}
    refused = by_fate.get(Fate.REFUSED, {})
    forgotten = by_fate.get(Fate.FORGOTTEN, {})

    if unknown:
        kept = {**unknown, **refused, **forgotten}
        batches = [remaining(flight.batch, kept), *waiting]
        yield state.record(batches)
        raise DeliveryFailed(outcomes[next(iter(unknown))].reason)

    state.done += flight.batch.dropped
    state.give_back(_Flight(flight.batch, refused))
    groups: list[list[Row]] = []
    for partition, rows in refused.items():
        if len(rows) == 1:
            state.dead.append(Dead(rows[0].id, outcomes[partition].reason))
            continue
        # What is too large together may fit alone; the next batches begin smaller as well.
        size = sum(row.size_bytes for row in rows)
        state.bytes_max = max(1, min(state.bytes_max, size // 2))
        middle = len(rows) // 2
        groups += [rows[:middle], rows[middle:]]

    if forgotten:
        yield from _start_anew(state, [row for rows in forgotten.values() for row in rows])
    yield from _carefully(state, groups)


def _start_anew(state: _Drain, rows: list[Row]) -> Steps:
    """A new producer, and the rows under its numbers."""
    state.identity = yield AskIdentity()
    yield from _carefully(state, [rows])


def _carefully(state: _Drain, groups: Sequence[list[Row]]) -> Steps:
    """One group after the other, each acknowledged or settled before the next is written down."""
    for rows in groups:
        if not rows:
            continue
        flight = state.plan(rows)
        yield state.record([flight.batch])
        yield Submit(flight.batch, flight.sets)
        outcomes: dict[int, Outcome] = yield Collect()
        if _all_acknowledged(outcomes):
            state.acknowledge(flight, outcomes)
        else:
            yield from _settle(state, flight, outcomes, [])


def _rows_of(flight: _Flight) -> list[Row]:
    return [row for rows in flight.sets.values() for row in rows]


def _all_acknowledged(outcomes: dict[int, Outcome]) -> bool:
    return all(outcome.fate is Fate.ACKNOWLEDGED for outcome in outcomes.values())
