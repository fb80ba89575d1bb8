"""What a task of Spark does for a team: records in, outcomes and new jobs out.

    records of a range of one partition
      → jobs        `envelope`
      → without repetitions                        `seen`, from this process's cache or the log
      → without those that ended in an earlier run of this micro-batch   (read back)
      → outcomes     `worker`
      → rows for the sink: outcome first, then what follows from it

Exactly one outcome (T5), the argument. The sink stores each row id of a micro-batch once, whoever
runs it and however often (`exactly_once`). The row of an outcome is named after its record's place
and goes to the results topic. If the job failed, the row is a failure mark without a value. If it
is to be tried again later, the row says so, and the job goes on under the same id as its next life
(`Job.identity`). So each life has one outcome, whichever attempt was first, and each job has one
that is final. Rows are stored in the order in which they are made, by topic, and the results topic
comes first: a forwarded job or a dead letter is stored only after its outcome. A run after a crash
first reads the outcomes of its predecessor and does not run those functions again: it only makes
what follows from them, from the stored result. So what follows agrees with the outcome, even if
the function would decide otherwise this time.

Two attempts at the very same time (a paused driver's task wakes up, and its functions have timed
out meanwhile) may decide differently. The sink compares: an attempt whose outcome is not the stored
one fails before it writes what would follow from it (`idConflict=fail`), and its next run goes on
from the stored one. So connectors must be functions of the result, and functions need not be
functions of the payload.
"""

import atexit
import time
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from dovetail import tracing
from dovetail.errors import OffsetOutOfRange
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, Partition, client_of
from dovetail.settings.tracing import TracingSettings
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, HEADERS_TYPE, BatchView, to_arrow
from dovetail.spark.exactly_once import (
    ID_HEADER,
    Attempt,
    attempt_of_task,
    begin_of,
    group_of,
    identity_of,
)
from dovetail.spark.fetching import fetch
from dovetail.teams.envelope import TO, Header, Identity, Job, job_of, place_of
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import (
    KIND,
    POSTPONED,
    REASON,
    TRACEBACK,
    DeadLetter,
    Postponed,
    outcome_of,
)
from dovetail.teams.seen import Seen
from dovetail.teams.team import WorkKind
from dovetail.teams.worker import Done, Ended, Worker

#: Jobs whose outcomes are handed to the sink together; memory holds two or three such batches.
BATCH_JOBS = 10_000
#: Caches of ids in one process; a partition that was not used for longest is read anew.
CACHES_MAX = 64
#: Teams whose workers are kept by one process.
WORKERS_MAX = 8

ROWS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("id", pa.binary()),
    ]
)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of an input topic."""

    job: Job
    offset: int
    at_ms: int
    #: Whether the id is the producer's; else it is the record's place, which never repeats.
    named: bool
    #: Names what is made of this record, for the sink: its place, which is the same in every run.
    row_id: bytes


class TeamTask:
    """Runs a team's function over the records of one task."""

    def __init__(self, stage: Stage, brokers: Brokers, run: str) -> None:
        """`run` names the life of the master: workers of an earlier one are not used again."""
        self._stage, self._brokers, self._run = stage, brokers, run
        self._traced = tracing.in_use()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows for the sink."""
        ended: dict[bytes, Ended] | None = None
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_JOBS):
                part = batch.slice(start, BATCH_JOBS)
                fresh = self._fresh(records_of(part), _partition_of(part))
                if not fresh:
                    continue
                if ended is None:
                    ended = self._ended_before(attempt_of_task())
                yield self._rows(self._perform(fresh, ended), ended)

    def _fresh(self, records: list[Record], partition: Partition) -> list[Record]:
        seen = _seen(self._brokers, self._stage.remember_ms, partition, records)
        named = [record for record in records if record.named]
        repeated = seen.repeats(
            [record.job.identity for record in named], [record.at_ms for record in named]
        )
        seen.position = records[-1].offset + 1
        if not any(repeated):
            return records
        dropped = {record.offset for record, again in zip(named, repeated, strict=True) if again}
        return [record for record in records if record.offset not in dropped]

    def _perform(
        self, records: list[Record], ended: dict[bytes, Ended]
    ) -> list[tuple[Record, Ended]]:
        again = [record for record in records if record.row_id in ended]
        first = [record for record in records if record.row_id not in ended]
        worker = _worker(self._stage, self._run, self._traced)
        outcomes = worker.run([record.job for record in first])
        followed = self._followed(again, [ended[record.row_id] for record in again])
        return [*zip(again, followed, strict=True), *zip(first, outcomes, strict=True)]

    def _followed(self, records: list[Record], ended: list[Ended]) -> list[Ended]:
        """What follows from outcomes that an earlier run stored."""
        stored = [
            Job(record.job.id, one.result)
            for record, one in zip(records, ended, strict=True)
            if isinstance(one, Done)
        ]
        if not stored:
            return [_of(record.job, one) for record, one in zip(records, ended, strict=True)]
        # The connectors run where they always do, behind a function that gives the stored result.
        stage = replace(self._stage, team=f"{self._stage.team}:again", work=_as_stored)
        followed = iter(_worker(replace(stage, kind=WorkKind.ITEM), self._run).run(stored))
        return [
            _of(record.job, next(followed) if isinstance(one, Done) else one)
            for record, one in zip(records, ended, strict=True)
        ]

    def _ended_before(self, attempt: Attempt | None) -> dict[bytes, Ended]:
        """The outcomes that earlier runs of this micro-batch have stored, by their rows' ids."""
        if attempt is None:
            return {}
        client = client_of(self._brokers)
        topic = self._stage.topics.results
        identity = identity_of(attempt)
        partitions = [(topic, number) for number in client.partitions([topic])[topic]]
        latest = client.offsets(dict.fromkeys(partitions, LATEST))
        earliest = client.offsets(dict.fromkeys(partitions, EARLIEST))
        stored = client.committed(group_of(attempt.query))
        found: dict[bytes, Ended] = {}
        for partition in partitions:
            begin = begin_of(stored.get(partition), batch=attempt.batch)
            start = max(begin, earliest[partition])
            for fetched in fetch(client, partition, start, latest[partition]):
                views = [
                    view
                    for view in fetched.batches
                    if identity.shares_batch(
                        producer_id=view.producer_id, epoch=view.producer_epoch
                    )
                ]
                if views:
                    found |= _outcomes(views, partition)
        return found

    def _rows(
        self, outcomes: list[tuple[Record, Ended]], stored: Container[bytes]
    ) -> pa.RecordBatch:
        """Outcomes first, unless they are stored: the sink stores topics in the order of rows."""
        rows, topics = _Rows(), self._stage.topics
        now_ms = time.time_ns() // 1_000_000
        #: Those that more follows from than a result: few in most teams.
        rest: list[tuple[Record, Ended]] = []
        for record, one in outcomes:
            if not isinstance(one, Done) or one.forwards:
                rest.append((record, one))
            if record.row_id in stored:
                continue
            key = record.job.key
            if isinstance(one, Done):
                rows.add(topics.results, key, one.result, one.job.marks(), record.row_id)
            elif isinstance(one, Postponed):
                # Empty and not absent: the sink tells it from a failure mark of another attempt.
                rows.add(topics.results, key, b"", one.headers(), record.row_id)
            else:
                marks = [header for header in one.headers() if header[0] != TRACEBACK]
                rows.add(topics.results, key, None, marks, record.row_id)
        for record, one in rest:
            self._follow(rows, record, one, now_ms)
        return rows.batch()

    def _follow(self, rows: "_Rows", record: Record, one: Ended, now_ms: int) -> None:
        """What follows from an outcome: a dead letter, the job's next life, jobs of others."""
        job, topics = record.job, self._stage.topics
        if isinstance(one, DeadLetter):
            letter_id = b"%b!" % record.row_id
            rows.add(topics.dead, job.key, job.payload, one.headers(), letter_id)
            return
        if isinstance(one, Postponed):
            headers = [*one.next_job.headers(), (TO, topics.input.encode())]
            row_id = b"%b~" % record.row_id
            rows.add(self._stage.delays_topic, job.key, job.payload, headers, row_id)
            return
        for number, forward in enumerate(one.forwards):
            parent = job.id if forward.id != job.id else job.parent
            topic = self._stage.targets[forward.target].input_topic
            due_ms = forward.after_ms and now_ms + forward.after_ms
            trace = one.job.traceparent
            next_job = Job(forward.id, forward.payload, parent, 0, due_ms, trace)
            headers = next_job.headers()
            if due_ms:
                headers.append((TO, topic.encode()))
                topic = self._stage.delays_topic
            row_id = b"%b>%d" % (record.row_id, number)
            rows.add(topic, next_job.key, forward.payload, headers, row_id)


def _as_stored(result: Any) -> Any:
    return result


def _of(job: Job, ended: Ended) -> Ended:
    if isinstance(ended, Done):
        return Done(job, ended.result, ended.forwards)
    if isinstance(ended, Postponed):
        return replace(ended, job=job)
    return DeadLetter(job, ended.failure, ended.attempts)


_NONE: list[dict[str, Any]] = []


def _pairs(headers: list[Header]) -> list[dict[str, Any]]:
    return [{"key": name, "value": content} for name, content in headers]


class _Rows:
    """Rows for the sink, as columns that grow."""

    def __init__(self) -> None:
        self._topics: list[str] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._headers: list[list[dict[str, Any]]] = []
        self._ids: list[bytes] = []

    def add(
        self, topic: str, key: bytes, value: bytes | None, headers: list[Header], row_id: bytes
    ) -> None:
        self._topics.append(topic)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(_pairs(headers) if headers else _NONE)
        self._ids.append(row_id)

    def batch(self) -> pa.RecordBatch:
        """What was added, as the sink takes it."""
        columns = (self._topics, self._keys, self._values, self._headers, self._ids)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """The records of a batch of the source, all of one partition."""
    topic, number = _partition_of(batch)
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = batch.column("headers")
    # Most jobs have none, and a column of empty lists costs more to look through than all others.
    pairs_of = headers.to_pylist() if len(headers.flatten()) else repeat(None, batch.num_rows)
    columns = (batch.column(name).to_pylist() for name in ("key", "value", "offset"))
    records = []
    for key, value, offset, at_us, pairs in zip(*columns, times, pairs_of, strict=True):
        found = [(pair["key"], pair["value"] or b"") for pair in pairs] if pairs else None
        place = place_of(topic, number, offset) if key is None else ""
        job = job_of(place=place, key=key, value=value, headers=found)
        row_id = b"%d-%d" % (number, offset)
        records.append(Record(job, offset, at_us // 1000, key is not None, row_id))
    return records


def _partition_of(batch: pa.RecordBatch) -> Partition:
    return batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()


def _outcomes(views: list[BatchView], partition: Partition) -> dict[bytes, Ended]:
    columns = to_arrow(views, partition, columns=COLUMNS_WITH_HEADERS)
    found: dict[bytes, Ended] = {}
    cells = (columns.column(name).to_pylist() for name in ("key", "value", "headers"))
    for key, value, pairs in zip(*cells, strict=True):
        headers = {pair["key"]: pair["value"] or b"" for pair in pairs or ()}
        row_id = headers.get(ID_HEADER, b"")
        if headers.get(KIND) == POSTPONED:
            mark = job_of(place="", key=key, value=value, headers=headers.items())
            reason = headers.get(REASON, b"").decode(errors="replace")
            found[row_id] = Postponed(mark, reason, mark.attempts, mark.not_before_ms)
            continue
        outcome = outcome_of(
            "", dead=KIND in headers, place="", key=key, value=value, headers=headers.items()
        )
        job = Job(outcome.id, outcome.payload)
        found[row_id] = (
            Done(job, outcome.payload, ())
            if outcome.failure is None
            else DeadLetter(job, outcome.failure, outcome.attempts)
        )
    return found


# --- what a process keeps from task to task -----------------------------------------------------

_caches: OrderedDict[tuple[Brokers, Partition], Seen] = OrderedDict()
_workers: OrderedDict[tuple[str, str, str], Worker] = OrderedDict()


def _worker(stage: Stage, run: str, traced: TracingSettings | None = None) -> Worker:
    name = (stage.pipeline, stage.team, run)
    if name not in _workers:
        if not _workers:
            atexit.register(_close_workers)
        stale = [other for other in _workers if other[:2] == name[:2]]
        surplus = list(_workers)[: max(0, len(_workers) + 1 - WORKERS_MAX)]
        for other in {*stale, *surplus}:
            _workers.pop(other).close()
        _workers[name] = Worker(stage, traced=traced)
    _workers.move_to_end(name)
    return _workers[name]


def _close_workers() -> None:
    while _workers:
        _workers.popitem()[1].close()


def _seen(brokers: Brokers, remember_ms: int, partition: Partition, records: list[Record]) -> Seen:
    """What was seen before the first of the records, brought up to it from the log."""
    name = (brokers, partition)
    start, oldest_ms = records[0].offset, min(record.at_ms for record in records)
    seen = _caches.pop(name, None)
    if seen is not None and seen.remember_ms == remember_ms and seen.position <= start:
        try:
            _catch_up(brokers, partition, seen, start)
        except OffsetOutOfRange:
            # Retention was faster than this process; what is left is read anew.
            seen = None
    else:
        seen = None
    if seen is None:
        seen = _read_window(brokers, partition, remember_ms, start, oldest_ms, forgets=True)
    if seen.lacks(oldest_ms):
        # Not kept: it would grow with every late record.
        return _read_window(brokers, partition, remember_ms, start, oldest_ms, forgets=False)
    _caches[name] = seen
    if len(_caches) > CACHES_MAX:
        _caches.popitem(last=False)
    return seen


def _read_window(
    brokers: Brokers,
    partition: Partition,
    remember_ms: int,
    start: int,
    oldest_ms: int,
    *,
    forgets: bool,
) -> Seen:
    window_ms = max(0, oldest_ms - remember_ms)
    first = client_of(brokers).offsets({partition: window_ms})[partition]
    position = start if first < 0 else min(first, start)
    seen = Seen(remember_ms=remember_ms, position=position, covers_ms=window_ms, forgets=forgets)
    _catch_up(brokers, partition, seen, start)
    return seen


def _catch_up(brokers: Brokers, partition: Partition, seen: Seen, end: int) -> None:
    """Reads what lies between what is known and `end`. Raises `OffsetOutOfRange`."""
    for fetched in fetch(client_of(brokers), partition, seen.position, end):
        batch = to_arrow(
            fetched.batches,
            partition,
            offset_min=seen.position,
            offset_end=end,
            columns=COLUMNS_WITH_HEADERS,
        )
        if batch.num_rows:
            seen.repeats(*_identities(batch))
    seen.position = end


def _identities(batch: pa.RecordBatch) -> tuple[list[Identity], list[int]]:
    """The identities and times of the records that have names.

    Spark gives the next range of a partition to any of its Python processes, and each reads what
    the others did: so half of all records come here, and most of them are a key and no header.
    """
    keys = batch.column("key")
    if keys.null_count or len(batch.column("headers").flatten()):
        named = [record for record in records_of(batch) if record.named]
        return [one.job.identity for one in named], [one.at_ms for one in named]
    times_us = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return keys.to_pylist(), [at_us // 1000 for at_us in times_us]
