"""One timeline that a broker serves: the thin, doing part around the loader.

Timers, the store and waiting requests meet here. One timer is set for whatever comes next: a push,
the end of a wait, the next lease. The loader, the windows and the broker's health make all other
decisions.

Failures: a store that does not answer delays leases and is asked again. When a consumer goes, the
messages leased for it that had not left go back uncounted, so that the next one gets them on time;
those that had left return when their lease ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from time import perf_counter
from typing import Any, Final, TypeVar
from weakref import WeakSet

from dovetail import tracing
from dovetail.background import Alarm, Tasks
from dovetail.errors import (
    DiskFull,
    DovetailError,
    Exists,
    InvalidInput,
    NotFound,
    StorageOut,
    TopicUnknown,
    Unavailable,
    Uncertain,
)
from dovetail.logging import get_logger
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.context import Context
from dovetail.timeline.engine.assignment import Member
from dovetail.timeline.engine.drift import Target
from dovetail.timeline.engine.loader import NEVER_MS, Loader, Plan
from dovetail.timeline.engine.signals import Lateness, Rate
from dovetail.timeline.engine.window import Attendee, Windows
from dovetail.timeline.message import Leased, Release
from dovetail.timeline.metrics import StoreCommand
from dovetail.timeline.session import (
    SESSION_MS,
    ConsumerSession,
    ProducerSession,
    RateLimit,
    Waiter,
)
from dovetail.timeline.spans import note_delivered
from dovetail.timeline.stores.protocol import LeaseResult, Seen, TimelineStore
from dovetail.timeline.upkeep import Upkeep
from dovetail.timeline.watch import Pump, Watch

_log = get_logger("timeline")

#: How often a store that other brokers write to is looked at while they are not heard.
POLL_MS: Final = 25
#: After these another message of an order key, or of a timeline at its limit, may be leased.
_FREEING: Final = frozenset({"cancel", "delete", "move", "purge", "release", "replay"})
#: After these messages count otherwise.
_CHANGING: Final = _FREEING | {"insert", "drop"}
_SLEEP_MS_MAX: Final = 60_000  # The window ends sooner anyway.

Result = TypeVar("Result")


class RunningTimeline:
    """One timeline that this broker serves. See the module."""

    def __init__(
        self,
        record: TimelineRecord,
        store: TimelineStore,
        context: Context,
        watch: Watch | None = None,
    ) -> None:
        """`watch` follows the other brokers of the store; None if there are none."""
        self.record, self._watch = record, watch
        self._store, self._context = store, context
        self._loop = asyncio.get_running_loop()

        config = record.config
        windows = Windows(config.dealer, buckets=config.buckets, window_ms=config.window_ms)
        self.loader = Loader(
            windows, overtake_ms=config.overtake_ms, poll_ms=POLL_MS if watch else 0
        )
        self.loader.listening = watch is not None and watch.listening

        self.consumers: dict[int, ConsumerSession] = {}
        self.producers: dict[int, ProducerSession] = {}
        self.arrivals, self.done = Rate(), Rate()
        self.lateness = Lateness()
        self.upkeep = Upkeep(self, context, followed=watch is not None)
        self.pumps: WeakSet[Pump] = WeakSet()

        self._timer = Alarm(self._pump, name="timeline/pump", of=record.name)
        self._window_timer = Alarm(self._on_window, name="timeline/window", of=record.name)
        self._tasks = Tasks()
        #: The last lease that began, and all that are not answered.
        self._leasing: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._ended: DovetailError | None = None
        self._on_window()

    def alter(self, record: TimelineRecord) -> None:
        """Its settings have changed; sessions stay, and buckets are assigned anew."""
        self.record, config = record, record.config
        for producer in self.producers.values():
            producer.rate = RateLimit(config.rate_max)
        windows = Windows(config.dealer, buckets=config.buckets, window_ms=config.window_ms)
        self.loader.alter(windows, overtake_ms=config.overtake_ms)
        self._on_window()

    # The store

    async def use(
        self, op: StoreCommand, work: Callable[[TimelineStore], Awaitable[Result]]
    ) -> Result:
        """Runs a command of the store, if storage is well enough; counts how it went.

        Raises `DovetailError`, whatever the store raised.
        """
        if self._ended is not None:
            raise self._ended
        health, name = self._context.health, self.record.name
        storage = health.storage_of(name)
        storage.admit()

        began_s = perf_counter()  # The loop's time stands still while it works.
        failed, full = True, False
        try:
            found = await work(self._store)
            failed = False

            if op in _CHANGING:
                health.on_stored(name)
                self._changed()
            if op in _FREEING and (self._store.ordered or self.record.config.in_hand_max):
                # What is done with may have made way for another message.
                self.stored(self._now_ms())
        except DovetailError as error:
            failed, full = error.retriable, op == "insert" and isinstance(error, DiskFull)
            if isinstance(error, StorageOut) and self._ended is None:
                health.on_out(name, str(error))
            raise
        except Exception as error:
            # Whoever waits is served again after a failure, and would not be after a defect.
            _log.exception("the store met a defect", error, timeline=name, command=op)
            raise Uncertain(f"{op}: {error!r}; it may or may not have happened") from error
        finally:
            if not full:  # It still takes leases and deletions, which make room.
                storage.on_outcome(good=not failed)
            self._context.metrics.query(name, op, perf_counter() - began_s, failed=failed)
        return found

    def check_open(self) -> None:
        """Raises `InvalidInput` for a timeline of a topic's due records, which is its owner's."""
        topic = self.record.config.topic
        if topic:
            raise InvalidInput(
                f"timeline {self.record.name!r} holds due records of topic {topic!r}: produce to "
                "the topic and consume from it; here they are listed, moved and cancelled"
            )

    def stored(self, due_ms: int) -> None:
        """Something is due then that was not before; it was stored here."""
        self._changed(due_ms)
        self._noted(due_ms)

    def _changed(self, due_ms: int = NEVER_MS) -> None:
        self.upkeep.on_change()
        if self._watch is not None:
            self._watch.tell(self.record.id, due_ms)

    # Other brokers

    def heard(self, due_ms: int) -> None:
        """Another broker has stored something that is due then, or changed something."""
        self.upkeep.on_change()
        self._noted(due_ms)

    def seen(self, found: Seen) -> None:
        """A look found this in the store."""
        self.upkeep.seen = found
        self.loader.on_look(found.first_ms)
        self._wake_pumps(NEVER_MS if found.first_ms is None else found.first_ms)

    def set_listening(self, listening: bool) -> None:
        """Whether other brokers are heard."""
        self.loader.listen(listening)
        self.upkeep.seen = self.upkeep.seen if listening else None
        self._pump()

    def _noted(self, due_ms: int) -> None:
        self._store.heard(due_ms)
        self.loader.on_inserted(due_ms)
        self._wake_pumps(due_ms)

    def _wake_pumps(self, due_ms: int) -> None:
        self._pump()
        for pump in self.pumps:
            pump.stored(due_ms)

    # Sessions

    def open_producer(self, session: int, client: str) -> None:
        rate = RateLimit(self.record.config.rate_max)
        self.producers[session] = ProducerSession(session, client, rate, self._now_ms())

    def open_consumer(
        self, session: int, member: Member, *, lease_ms: int, instance: int = 0
    ) -> None:
        """Raises `InvalidInput` if the lease is out of bounds, `Unavailable` in a partition, and
        `Exists` while another live consumer has this id: the two would share their leases.

        A consumer that comes back under the same id takes the place of the one it was.
        """
        self.check_open()
        longest_ms = self.record.config.lease_ms_max
        shortest_ms = self._context.lease_ms_min
        if not shortest_ms <= lease_ms <= longest_ms:
            raise InvalidInput(
                f"a lease of {lease_ms} ms; timeline {self.record.name!r} gives "
                f"{shortest_ms} to {longest_ms} ms"
            )
        if self._context.health.peers.parted(self._now_ms()):
            raise Unavailable("this broker may be cut off from the cluster; try another one")

        others = [each for each in self.consumers.values() if each.member.id == member.id]
        if any(each.is_twin(instance, self._now_ms()) for each in others):
            raise Exists(
                f"another consumer of timeline {self.record.name!r} runs under the id "
                f"{member.id!r}; give each consumer an id of its own"
            )
        for other in others:
            gone = NotFound(f"session {other.id} was replaced by a new one of {member.id!r}")
            self.close_session(other.id, gone)

        self.consumers[session] = ConsumerSession(
            session, member, lease_ms, self._now_ms(), instance
        )
        self.loader.join(member, lease_ms=lease_ms)
        self._context.on_consumers()
        self._pump()

    def close_session(self, session: int, why: DovetailError | None = None) -> None:
        """Ends a session; what was leased and did not leave goes back at once, uncounted."""
        self.producers.pop(session, None)
        consumer = self.consumers.pop(session, None)
        if consumer is None:
            return
        self.loader.leave(consumer.member.id)
        if not self.consumers:
            # Nothing is leased for nobody, so nothing is known of leases.
            self._context.health.on_lease(self.record.name, good=True)
        self._context.on_consumers()
        self._context.drift.forget(Target.CONSUMER, consumer.member.id)
        consumer.fail(why or NotFound(f"session {session} is closed"))
        if consumer.outbox:
            self._run(partial(self._give_back, consumer.take_back()))

    async def give_back_unsent(self, session: int) -> None:
        """Gives back what was leased for a consumer that asks for nothing now."""
        await self.leased()
        consumer = self.consumers.get(session)
        if consumer is not None and consumer.outbox and not consumer.waiters:
            await self._give_back(consumer.take_back())

    async def _give_back(self, releases: Sequence[Release]) -> None:
        attempts_max, now_ms = self.record.config.attempts_max, self._now_ms()
        await self.use(
            "release",
            lambda store: store.release(releases, now_ms=now_ms, attempts_max=attempts_max),
        )
        self.stored(min(item.due_ms for item in releases))

    def consumer(self, session: int) -> ConsumerSession:
        """Raises `NotFound`."""
        if self._ended is not None:
            raise self._ended
        found = self.consumers.get(session)
        if found is None:
            raise NotFound(f"no consumer has session {session}; open one")
        found.seen_ms = self._now_ms()
        return found

    def producer(self, session: int) -> ProducerSession:
        """Raises `NotFound`."""
        if self._ended is not None:
            raise self._ended
        found = self.producers.get(session)
        if found is None:
            raise NotFound(f"no producer has session {session}; open one")
        found.seen_ms = self._now_ms()
        return found

    # Pushing

    async def consume(self, session: int, *, limit: int, wait_ms: int) -> list[Leased]:
        """Messages as they become due, or none within the wait."""
        consumer = self.consumer(session)
        waiter = Waiter(limit, self._now_ms() + wait_ms, self._loop.create_future())
        consumer.waiters.append(waiter)
        self._pump()
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            # The connection is gone, and with it who waited; an answer may have come just now.
            self._context.metrics.session_lost(self.record.name, "consumer")
            if self.consumers.get(session) is consumer:
                self.close_session(session)
            self._give_back_unread(waiter, consumer)
            raise

    def _give_back_unread(self, waiter: Waiter, consumer: ConsumerSession) -> None:
        """Gives back what answered a request whose caller had gone: nothing was tried."""
        answer = waiter.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            messages = answer.result()
            if messages:
                self._run(partial(self._give_back, consumer.returned(messages)))

    def _pump(self) -> None:
        """Does what is to be done by now, and arms the timer for what comes next."""
        if self._ended is not None:
            return
        now_ms = self._now_ms()
        self._assign_if_empty(now_ms)
        healthy = self._context.health.may_push(self.record.name, now_ms=now_ms)
        may_push = healthy and not self.record.config.paused
        self.loader.held_back = not may_push
        for consumer in self.consumers.values():
            if may_push:
                self._note_pushed(consumer, consumer.push_due(now_ms), now_ms)
            consumer.end_waiting(now_ms)
            self.loader.offer(consumer.member.id, consumer.credit, now_ms=now_ms)
        plan = self.loader.plan(now_ms=now_ms)
        if plan is not None:
            self._leasing = self._run(partial(self._lease, plan, self._leasing))
            self._under_way.add(self._leasing)
            self._leasing.add_done_callback(self._under_way.discard)
        self._arm(now_ms)

    def _note_pushed(self, consumer: ConsumerSession, left: Sequence[Leased], now_ms: int) -> None:
        if not left:
            return
        name, metrics = self.record.name, self._context.metrics
        consumer.leased += len(left)
        late = [now_ms - consumer.start_ms(message) + consumer.latency_ms for message in left]
        self.lateness.add(late)
        metrics.late(name, late)
        metrics.moved(name, "out", "consumer", sum(len(message.body) for message in left))
        if tracing.is_on():
            for message in left:
                note_delivered(name, message, consumer.start_ms(message), now_ms)

    def _arm(self, now_ms: int) -> None:
        wake_ms: float = self.loader.wake_ms(now_ms=now_ms)
        if not self.loader.held_back:
            wake_ms = min([wake_ms, *(each.wake_ms() for each in self.consumers.values())])
        delay_ms = min(max(0.0, wake_ms - now_ms), _SLEEP_MS_MAX)
        self._timer.set(delay_ms / 1000)

    async def _lease(self, plan: Plan, before: "asyncio.Task[None] | None") -> None:
        """Leases what was planned. What was asked for `before` leaves before it."""
        began_ms = self._context.clock.monotonic_ms()
        attempts_max, pace = self.record.config.attempts_max, self.record.config.pace
        try:
            result = await self.use(
                "lease",
                lambda store: store.lease(
                    plan.asks, now_ms=plan.begun_ms, attempts_max=attempts_max, pace=pace
                ),
            )
        except DovetailError as error:
            self.loader.on_failed(plan, now_ms=self._now_ms())
            if self._ended is None:
                self._context.health.on_lease(self.record.name, good=False)
            self._context.metrics.leases(self.record.name, "create", good=0, bad=len(plan.asks))
            _log.warning("no lease", timeline=self.record.name, error=str(error))
            self._pump()
            return

        took_ms = self._context.clock.monotonic_ms() - began_ms
        if before is not None:
            await asyncio.wait([before])
        # First of all: a plan that nobody answers holds the room of its consumers for ever.
        pushes = self.loader.on_leased(plan, result, took_ms=took_ms)
        self._context.health.on_lease(self.record.name, good=True)
        by_consumer = {consumer.member.id: consumer for consumer in self.consumers.values()}
        orphans: list[Release] = []
        for name, group in groupby(pushes, key=attrgetter("consumer")):
            consumer = by_consumer.get(name)
            if consumer is not None:
                consumer.put(group)
                continue
            gone = [push.message for push in group]
            orphans += (Release(each.handle, each.due_ms, counted=False) for each in gone)

        if orphans:
            self._run(partial(self._give_back, orphans))
        self._pump()
        self._note_leased(result)

    async def leased(self) -> None:
        """Returns when what is being leased now has come, and waits for its time."""
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    def _note_leased(self, result: LeaseResult) -> None:
        name, metrics = self.record.name, self._context.metrics
        count = sum(map(len, result.leased))
        if count or result.died:
            self._changed()
        size = sum(len(leased.body) for part in result.leased for leased in part)
        metrics.leases(name, "create", good=count, body_bytes=size)
        metrics.moved(name, "in", "storage", size)
        if result.died:
            metrics.messages(name, "dead", good=result.died)
            self.stored(self._now_ms())

    def wake(self) -> None:
        """Does what is to be done by now: for a clock that does not run by itself."""
        now_ms = self._now_ms()
        if self.loader.on_window(self._attendees(), now_ms=now_ms):
            self._forget_silent(now_ms)
        self._pump()

    # Windows

    def _attendees(self) -> list[Attendee]:
        before, here = self.loader.known(), self.loader.attendees()
        if here != before:
            self._context.on_consumers()
        return [*here, *self._context.others(self.record)]

    @property
    def idle(self) -> int:
        """Consumers, at whatever broker, that could take messages and get none."""
        return sum(each.idle for each in (*self.loader.known(), *self._context.others(self.record)))

    def _assign_if_empty(self, now_ms: int) -> None:
        if self.consumers and not self.loader.windows.assignment.members:
            self.loader.on_window(self._attendees(), now_ms=now_ms)

    def _on_window(self) -> None:
        now_ms = self._now_ms()
        self._forget_silent(now_ms)
        self.loader.on_window(self._attendees(), now_ms=now_ms)
        delay_ms = self.loader.windows.ends_ms(now_ms) - now_ms
        self._window_timer.set(delay_ms / 1000)
        self._pump()

    def _forget_silent(self, now_ms: int) -> None:
        """Ends sessions that nothing was heard of; one that waits for messages is heard."""
        for consumer in list(self.consumers.values()):
            if not consumer.is_heard(now_ms):
                self._context.metrics.session_lost(self.record.name, "consumer")
                self.close_session(consumer.id)
        for producer in list(self.producers.values()):
            if now_ms - producer.seen_ms > SESSION_MS:
                self.close_session(producer.id)

    # The end

    async def end(self, *, deleted: bool) -> None:
        """Stops serving: clients get an error, what did not leave goes back, the store closes."""
        error: DovetailError = Unavailable("this broker stops; connect to another one")
        if deleted:
            error = TopicUnknown(f"timeline {self.record.name!r} was deleted")

        for timer in (self._timer, self._window_timer):
            timer.cancel()
        for session in list(self.consumers):
            self.close_session(session, error)
        self.producers.clear()

        if deleted:
            self._ended = error
        await self._tasks.finish()
        self._ended = error
        for timer in (self._timer, self._window_timer):
            timer.cancel()
        await self._store.close()

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        name = self.record.name
        return self._tasks.start(_logged(work, name), name="timeline/store", of=name)

    def _now_ms(self) -> int:
        return self._context.now_ms()


async def _logged(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    try:
        await work()
    except DovetailError as error:
        _log.warning("timeline work failed", timeline=name, error=str(error))
