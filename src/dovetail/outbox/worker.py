"""A worker of the relay: finds topics with messages, locks one, drains it, continues with the next.

It is thin: `drain` decides what to do, the lock in the database who may do it. The worker performs
the effects, renews the lock while the broker takes its time, and turns errors into a mark on the
topic and a later attempt.

`on_step` is called with a name before and after everything that leaves a trace outside
(`STEP_NAMES`). Tests put a kill there; nothing else uses it.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import Unavailable
from dovetail.kafka.client.partitioner import PARTITIONERS
from dovetail.logging import get_logger
from dovetail.outbox.batch import Identity, Row
from dovetail.outbox.claim import Claim
from dovetail.outbox.database import DatabaseDown
from dovetail.outbox.drain import (
    AskIdentity,
    AskPartitions,
    Collect,
    DeliveryFailed,
    Effect,
    Fetch,
    Load,
    Options,
    Outcome,
    Record,
    Submit,
    drain,
)
from dovetail.outbox.message import TIMELINE_PREFIX
from dovetail.outbox.metrics import RelayMetrics
from dovetail.outbox.pace import Pace, fetch_count, retry_delay_ms
from dovetail.outbox.reading import Pass
from dovetail.outbox.sender import Sender
from dovetail.outbox.store import LockLost, Store

_log = get_logger("outbox")

#: Names that `on_step` is called with, each after "before " and "after ".
STEP_NAMES = ("lock", "load", "record", "submit", "collect", "finish")

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """How a relay works; the settings of section `outbox` say what each is for."""

    workers: int = 1
    batch_messages_max: int = 1000
    batch_bytes_max: int = 900_000
    lock_ms: int = 60_000
    idle_ms: int = 500
    retry_ms: int = 1_000
    retry_ms_max: int = 60_000
    delivery_ms: int = 30_000
    pass_ms_max: int = 30_000
    shards: int = 1
    partitioner: str = "crc32"
    compression: str = "none"
    compact_topics: frozenset[str] = field(default_factory=frozenset)

    def compacts(self, topic: str) -> bool:
        return topic in self.compact_topics or "*" in self.compact_topics


class Memory:
    """The producers that this relay has written down last; shared by its workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], tuple[int, int, Identity]] = {}
        self._generation = 0

    def reconnected(self) -> None:
        """The database may not be the one of before: nothing that was written counts as kept."""
        with self._lock:
            self._generation += 1

    def wrote(self, claim: Claim, identity: Identity) -> None:
        with self._lock:
            self._known[claim.topic, claim.shard] = (self._generation, claim.term, identity)

    def continues(self, claim: Claim) -> bool:
        """Whether the claim follows our own last one, and finds what we wrote."""
        with self._lock:
            known = self._known.get((claim.topic, claim.shard))
            return known == (self._generation, claim.term - 1, claim.identity)


class Worker:
    """One worker; `run` is the body of its thread."""

    def __init__(
        self,
        name: str,
        store: Store,
        sender: Sender,
        options: RelayOptions,
        *,
        memory: Memory,
        metrics: RelayMetrics,
        stopping: threading.Event,
        woken: threading.Event,
        on_step: OnStep | None = None,
        timelines: Sender | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._sender = sender
        self._timelines = timelines
        self._options = options
        self._memory = memory
        self._metrics = metrics
        self._stopping = stopping
        self._woken = woken
        self._on_step = on_step
        self._generation = 0
        self._pace = Pace(idle_ms=options.idle_ms)
        self._asleep = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="outbox-reader")

    def run(self) -> None:
        """Works until the relay stops; waits while the database is down."""
        while not self._stopping.is_set():
            try:
                found = self.work_once()
                self._rest(found)
            except DatabaseDown as error:
                self._asleep = False
                _log.warning(
                    "cannot reach the database; trying again", worker=self.name, reason=str(error)
                )
                self._stopping.wait(self._options.retry_ms / 1000)
            except BaseException:
                # Its thread begins anew, on another connection.
                self._asleep = False
                self._store.close()
                raise
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        self._reader.shutdown()
        self._store.close()

    def work_once(self) -> bool:
        """One round over all topics that have messages; whether anything was locked."""
        worked = False
        options = self._options
        for topic, shard in self._store.pending(
            owner=self.name, lock_ms=options.lock_ms, shards=options.shards
        ):
            if self._stopping.is_set():
                break
            self._wake()
            self._step("before lock")
            claim = self._store.lock(topic, shard, owner=self.name, lock_ms=options.lock_ms)
            self._step("after lock")
            if claim is not None:
                worked = True
                self._work(claim)
        return worked

    def _rest(self, worked: bool) -> None:
        """Waits for messages: for a notification where publishers send one, else for a while."""
        if worked:
            self._pace.found()
            return
        if not self._asleep and not self._pace.restless:
            self._asleep = self._store.try_sleep()
            if self._asleep:
                # Somebody may have committed since the last look; one more before sleeping.
                self._woken.clear()
                return
        delay_ms = self._pace.next_ms(asleep=self._asleep)
        if self._woken.wait(delay_ms / 1000):
            self._woken.clear()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._store.wake()

    def _work(self, claim: Claim) -> None:
        """Drains one claim to its end, whatever that is."""
        if self._store.generation != self._generation:
            self._generation = self._store.generation
            self._memory.reconnected()

        session: _Session | None = None
        try:
            session = _Session(self, claim)
            session.run()
        except LockLost as error:
            self._metrics.lost(claim.topic)
            _log.warning("lock lost", topic=claim.topic, shard=claim.shard, reason=str(error))
        except DatabaseDown:
            raise
        except (DeliveryFailed, Unavailable) as error:
            self._fail(claim, str(error))
        except Exception as error:  # noqa: BLE001 - a fault in one topic must not end the worker
            _log.exception("cannot drain a topic: internal error", topic=claim.topic)
            self._fail(claim, f"{type(error).__name__}: {error}")
        finally:
            if session is not None:
                session.close()

    def _fail(self, claim: Claim, reason: str) -> None:
        delay_ms = retry_delay_ms(
            claim.retries,
            first_ms=self._options.retry_ms,
            most_ms=self._options.retry_ms_max,
            chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
        )
        self._metrics.failed(claim.topic)
        _log.warning(
            "cannot drain a topic; trying again later",
            topic=claim.topic,
            shard=claim.shard,
            reason=reason,
            retries=claim.retries + 1,
            retry_ms=delay_ms,
        )
        try:
            self._store.fail(claim, reason, retry_ms=delay_ms)
        except LockLost as error:
            _log.warning("lock lost", topic=claim.topic, shard=claim.shard, reason=str(error))

    def _sender_of(self, topic: str) -> Sender:
        if not topic.startswith(TIMELINE_PREFIX):
            return self._sender
        if self._timelines is None:
            raise Unavailable(
                f"cannot send to {topic!r}: this relay has no connection to timelines"
            )
        return self._timelines

    def _step(self, name: str) -> None:
        if self._on_step is not None:
            self._on_step(name)


class _Session:
    """Performs the effects of one `drain`."""

    def __init__(self, worker: Worker, claim: Claim) -> None:
        self._worker = worker
        self._claim = claim
        self._store = worker._store
        self._sender = worker._sender_of(claim.topic)
        self._options = worker._options
        self._pass: Pass = self._store.read(claim)
        self._on_its_way: deque[Future[dict[int, Outcome]]] = deque()
        self._ends = time.monotonic() + self._options.pass_ms_max / 1000
        self._count = fetch_count(0, 0, most=self._options.batch_messages_max)
        self._ahead: Future[list[Row]] | None = None

    def run(self) -> None:
        claim, options = self._claim, self._options
        steps = drain(
            identity=claim.identity,
            batches=claim.batches,
            continues=self._worker._memory.continues(claim),
            options=Options(
                PARTITIONERS[options.partitioner],
                options.batch_bytes_max,
                options.compacts(claim.topic),
            ),
        )

        result: Any = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration:
                return
            result = self._perform(effect)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.exception()
        self._pass.close()

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Fetch():
                return self._fetch()
            case Record():
                return self._record(effect)
            case Submit():
                self._worker._step("before submit")
                after = self._on_its_way[-1] if self._on_its_way else None
                sent = self._sender.send(self._claim.topic, effect.batch, effect.sets, after)
                self._on_its_way.append(sent)
                self._worker._step("after submit")
                return None
            case Collect():
                self._worker._step("before collect")
                outcomes = self._wait(self._on_its_way.popleft())
                self._worker._step("after collect")
                return outcomes
            case Load():
                self._worker._step("before load")
                return self._store.load(effect.ids)
            case AskPartitions():
                return self._sender.partitions(self._claim.topic)
            case AskIdentity():
                return self._sender.new_identity()

    def _fetch(self) -> list[Row]:
        if self._worker._stopping.is_set() or time.monotonic() > self._ends:
            return []
        if self._ahead is None:
            rows = self._pass.fetch(self._count)
        else:
            rows, self._ahead = self._ahead.result(), None
        if len(rows) < self._count:
            return rows
        size = sum(len(row.payload) for row in rows if row.payload is not None)
        self._count = fetch_count(len(rows), size, most=self._options.batch_messages_max)
        # The database reads the next rows while it deletes the last.
        self._ahead = self._worker._reader.submit(self._pass.fetch, self._count)
        return rows

    def _record(self, record: Record) -> None:
        name = "finish" if record.finish else "record"
        self._worker._step(f"before {name}")
        self._store.record(self._claim, record)
        self._worker._memory.wrote(self._claim, record.identity)
        metrics = self._worker._metrics
        metrics.sent(self._claim.topic, record.sent)
        for dead in record.dead:
            metrics.dead(self._claim.topic)
            _log.error(
                "set a message aside", topic=self._claim.topic, id=dead.id, reason=dead.reason
            )
        self._worker._step(f"after {name}")

    def _wait(self, sent: "Future[dict[int, Outcome]]") -> dict[int, Outcome]:
        """The outcome; the lock is renewed while it takes long."""
        while True:
            try:
                return sent.result(timeout=self._options.lock_ms / 3000)
            except TimeoutError:
                self._store.renew(self._claim)
