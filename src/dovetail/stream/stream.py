"""`SharedStream`: every replica consumes, only the leader's handler runs.

This module assembles the parts and decides nothing: `delivery` decides what to do with the stream,
`member` who leads. A task performs each step of the delivery and returns its outcome.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.election import ClusterMember, HttpTransport, Leadership, member_on_kafka
from dovetail.election.kafka_client import ClientConfig
from dovetail.election.metrics import ElectionMetrics
from dovetail.errors import DovetailError, Fenced
from dovetail.exposition import BackgroundCollector
from dovetail.logging import get_logger
from dovetail.stream.dead_letters import DeadLetters, KafkaDeadLetters
from dovetail.stream.delivery import Delivery, FindEnd, Handle, Phase, Seek, Step, WriteReport
from dovetail.stream.filter import LeaderEventFilter, OnlyLeader
from dovetail.stream.handler import Handler, IsolatedHandler, RobustStreamHandler, StreamHandler
from dovetail.stream.health import health_routes
from dovetail.stream.kafka_source import KafkaSource
from dovetail.stream.metrics import StreamMetrics
from dovetail.stream.retrying import Next
from dovetail.stream.settings import StreamSettings
from dovetail.stream.source import Event, Source
from dovetail.supervision import Supervisor

#: Events that wait for the handler before reading pauses.
WAITING_EVENTS_MAX = 5_000
#: How long a clean end waits for the event under way and its commit.
CLOSE_S_MAX = 5.0
#: A filter may make events wait so long before the replica counts as degraded.
HELD_S_MAX = 5.0
#: Pause before a step that failed is tried again.
RETRY_S = 0.1

_log = get_logger("stream")


class SharedStream:
    """One replica's share of a stream."""

    def __init__(
        self,
        source: Source,
        handler: Handler,
        *,
        member: ClusterMember,
        settings: StreamSettings,
        event_filter: LeaderEventFilter | None = None,
        stream_handler: StreamHandler | None = None,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        settings.check()
        self.member = member
        self.metrics = StreamMetrics(member.metrics.registry)
        self._settings = settings
        self._source = source
        self._reader = stream_handler or RobustStreamHandler(source, self.metrics)
        self._handler = IsolatedHandler(
            handler,
            event_filter or OnlyLeader(),
            self.metrics,
            stop_s=settings.report_interval_ms / 1000,
            retries=settings.retries,
        )
        self._handler.sets_aside = dead_letters is not None
        self._dead_letters = dead_letters

        self._delivery: Delivery[Event] = Delivery(settings.takeover, settings.batch_events_max)
        self._leadership: Leadership | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._received: dict[int, int] = {}
        self._alive = True
        self._tasks = Tasks()
        self._supervisor = Supervisor()
        self.metrics.registry.register(BackgroundCollector(self._supervisor))
        self._started = False
        self._closing = False
        #: Set when nothing is being handled that could still be committed.
        self._drained = asyncio.Event()

    @classmethod
    def on_kafka(
        cls,
        bootstrap: str,
        topic: str,
        handler: Handler,
        settings: StreamSettings,
        *,
        coordinator: Coordinator | None = None,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> "SharedStream":
        """A replica on a topic of Dovetail or Kafka, with the usual parts.

        COORDINATOR needs the `coordinator`. `config` goes to the Kafka clients (login, TLS).
        """
        settings.check()
        metrics = ElectionMetrics()
        made: list[SharedStream] = []

        def health() -> tuple[bool, dict[str, Any]]:
            return made[0].health()

        routes = health_routes(health, metrics.registry)
        member = member_on_kafka(
            settings,
            bootstrap,
            transport=HttpTransport(settings, routes=routes, clock=clock),
            coordinator=coordinator,
            config=config,
            metrics=metrics,
            clock=clock,
        )
        source = KafkaSource(bootstrap, topic, timeout_ms=settings.timeout_ms, config=config)
        dead_letters = None
        if settings.dead_letters_topic:
            dead_letters = KafkaDeadLetters(
                bootstrap,
                settings.dead_letters_topic,
                timeout_ms=settings.timeout_ms,
                config=config,
            )
        made.append(
            cls(source, handler, member=member, settings=settings, dead_letters=dead_letters)
        )
        return made[0]

    # --- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._settings.start_immediately:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Joins the cluster and begins to consume.

        Raises `Unavailable` if the stream or the shared log cannot be reached; then nothing is
        left running.
        """
        try:
            end = await self._source.end()
            with self._supervisor.supervising():
                await self.member.start(end, self._source.name)
        except BaseException:
            await self._source.close()
            raise

        self._started = True
        self._received = dict(end)
        self._report_received()
        self._reader.seek(end, self._delivery.generation)
        with self._supervisor.supervising():
            self._tasks.keep(partial(self._reader.run, self), name="stream/read")
            self._tasks.keep(self._lead, name="stream/lead")

    async def close(self) -> None:
        """Ends the event under way, commits it, hands the leadership over; safe to call again.

        A handler that takes longer than `CLOSE_S_MAX` is cut off; its event was not committed.
        """
        if not self._started:
            return
        self._closing = True
        self._handler.stop()
        if self._delivery.phase in (Phase.HANDLING, Phase.REPORTING):
            self._drained.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await self._drained.wait()

        self._started = False
        await self._tasks.stop()
        await self.member.close()
        await self._source.close()
        if self._dead_letters is not None:
            await self._dead_letters.close()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether this replica does its part, and the facts."""
        if not self._started:
            return False, {"status": "starting"}
        status = self.member.status()
        known = status.leader is not None and status.leader in status.members
        held = self._handler.held if self._leadership is not None else None
        held_s = 0.0 if held is None else time.monotonic() - held.since_s
        failing = self._handler.attempts.failing if self._leadership is not None else None
        failing_s = 0.0 if failing is None else time.monotonic() - failing.since_s

        problems = self._supervisor.problems()
        if status.has_twin:
            problems.append(f"another process takes part as {status.name}")
        doing_its_part = status.failure is None and self._alive and known
        moves = max(held_s, failing_s) < HELD_S_MAX
        healthy = doing_its_part and moves and not problems
        return healthy, {
            "status": "ok" if healthy else "degraded",
            "member": status.name,
            "algorithm": status.algorithm.value,
            "role": status.role.value,
            "term": status.term,
            "leader": status.leader,
            "members": list(status.members),
            "source_connected": self._alive,
            "waiting_events": self._delivery.waiting_count,
            "handled": {str(lane): offset for lane, offset in self._delivery.handled.items()},
            "held_by_filter": held
            and {"lane": held.event.lane, "offset": held.event.offset, "seconds": round(held_s, 3)},
            "failing": None if failing is None else failing.facts(failing_s),
            "failure": status.failure,
            "problems": problems,
        }

    # --- reading ------------------------------------------------------------------------------

    async def on_events(self, events: Sequence[Event], generation: int) -> None:
        """Events were read; waits while too many of them wait for the handler."""
        if not events:
            return
        self.metrics.received.inc(len(events))
        for event in events:
            if event.offset >= self._received.get(event.lane, 0):
                self._received[event.lane] = event.offset + 1
        self._perform(self._delivery.on_events(events, generation=generation))
        self._report_received()
        await self._room.wait()

    def on_source(self, *, alive: bool) -> None:
        """The stream is there, or lost."""
        if alive != self._alive:
            self._alive = alive
            self.member.do(lambda now: self.member.election.on_source(alive=alive, now_ms=now))

    def _report_received(self) -> None:
        waiting = self._delivery.waiting_count
        self.metrics.lag.set(waiting)
        busy = waiting > WAITING_EVENTS_MAX
        if busy:
            self._room.clear()
        else:
            self._room.set()
        position = self._received
        self.member.do(
            lambda now: self.member.election.on_received(position, busy=busy, now_ms=now)
        )

    # --- leading ------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Follows the leaderships of this member, one after the other."""
        while True:
            leadership = await self.member.lead()
            self._leadership = leadership
            committed = self.member.shared_log.state.position
            self._perform(self._delivery.on_lead(leadership.term, committed))
            await leadership.lost.wait()

            self._leadership = None
            self._delivery.on_lost()
            self._drained.set()
            self._reader.seek(self._received, self._delivery.generation)
            self._report_received()

    def _perform(self, steps: list[Step[Event]]) -> None:
        leadership = self._leadership
        for step in steps:
            if isinstance(step, Seek):
                self._reader.seek(step.position, step.generation)
            elif leadership is None:
                return
            elif isinstance(step, FindEnd):
                self._tasks.keep(partial(self._find_end, leadership), name="stream/find-end")
            elif isinstance(step, WriteReport):
                self._tasks.keep(partial(self._report, leadership, step), name="stream/report")
            elif self._closing:
                self._drained.set()
            elif isinstance(step, Handle):
                self._tasks.keep(partial(self._handle, leadership, step), name="stream/handle")

    async def _find_end(self, leadership: Leadership) -> None:
        while not leadership.lost.is_set():
            try:
                end = await self._source.end()
            except DovetailError as error:
                _log.warning("cannot find the end of the stream", reason=str(error))
                await _wait(leadership, RETRY_S)
            else:
                self._perform(self._delivery.on_end(leadership.term, end))
                return

    async def _report(self, leadership: Leadership, step: WriteReport) -> None:
        accepted = False
        try:
            await leadership.confirm(step.position)
            accepted = True
        except Fenced as error:
            _log.info("report refused", reason=str(error))
            return
        except DovetailError as error:
            _log.warning("cannot store a report; trying again", reason=str(error))
            await _wait(leadership, RETRY_S)

        self._perform(self._delivery.on_reported(step.term, accepted=accepted))
        if self._delivery.phase is Phase.READING:
            self._drained.set()

    async def _handle(self, leadership: Leadership, step: Handle[Event]) -> None:
        done = await self._handler.handle(step.events, leadership)
        if not done:
            done = await self._set_aside(step.events[0])
        if not done:
            await self._rest(leadership)
        self._perform(self._delivery.on_handled(step.term, done))
        self._report_received()

    async def _set_aside(self, event: Event) -> list[Event]:
        """Sets the event aside if its last attempt failed; it is done then."""
        attempts, now_s = self._handler.attempts, time.monotonic()
        failing = attempts.failing
        if self._dead_letters is None or failing is None:
            return []
        if attempts.next_for(event, now_s) is not Next.SET_ASIDE:
            return []
        place = {"lane": event.lane, "offset": event.offset}
        try:
            await self._dead_letters.put(failing, source=self._source.name)
        except DovetailError as error:
            _log.error("cannot set an event aside; it waits", reason=str(error), **place)
            attempts.on_not_set_aside(time.monotonic())
            return []

        _log.error("set an event aside", reason=failing.reason, **place)
        self.metrics.dead.inc()
        attempts.on_done()
        return [event]

    async def _rest(self, leadership: Leadership) -> None:
        """Waits until the event that fails, or that the filter holds, can be tried again."""
        until_s = time.monotonic() + max(RETRY_S, self._handler.attempts.pause_s(time.monotonic()))
        while not (leadership.lost.is_set() or self._closing):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            await _wait(leadership, min(left_s, RETRY_S))


async def _wait(leadership: Leadership, seconds: float) -> None:
    """Waits a while, or until the leadership is lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await leadership.lost.wait()
