"""The timelines of a broker: a `Dispatch` for their frames, and the states of each of them.

The coordination service records which timelines exist (`catalog`), and every broker watches it: it
opens a timeline that becomes ready, and ends one that is deleted with an error to its clients; the
broker that becomes its master removes its storage. So a command about a timeline is answered when
the catalog has it, and the rest happens on every broker by itself, even if one dies half-way.

Periodic upkeep, never while our clock is wrong: fire schedules ahead of their time, count messages,
trim dead letters, compare clocks.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry

from dovetail.access import EVERYTHING, Access
from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.coordination.membership import LeaseSource
from dovetail.errors import Damaged, DovetailError, WatchGap
from dovetail.logging import get_logger
from dovetail.timeline import frames
from dovetail.timeline.catalog import Catalog, TimelineRecord
from dovetail.timeline.clocks import Clocks, DatedService
from dovetail.timeline.config import TimelineConfig, shortest_lease_ms
from dovetail.timeline.context import Context
from dovetail.timeline.dispatch import Dispatcher
from dovetail.timeline.engine.drift import Drift
from dovetail.timeline.engine.health import Health, Report
from dovetail.timeline.engine.selection import Crowd
from dovetail.timeline.engine.signals import Busyness
from dovetail.timeline.engine.window import Attendee
from dovetail.timeline.forwarding import Forwarder, Topics
from dovetail.timeline.message import TimelineId
from dovetail.timeline.metrics import TimelineMetrics
from dovetail.timeline.receiver import Receiver
from dovetail.timeline.requests import Requests
from dovetail.timeline.roster import Roster
from dovetail.timeline.running import RunningTimeline
from dovetail.timeline.stores.protocol import Stores
from dovetail.timeline.watch import Watch
from dovetail.wire import Connection, Reply
from dovetail.wire.calls import Answer, Request
from dovetail.wire.probe import Prober

_log = get_logger("timeline")

#: How often the broker looks after its timelines.
UPKEEP_MS: Final = 500
#: Upkeeps between two trims, and two looks at what others left unfinished.
_TRIM_EVERY: Final = 120
_FINISH_EVERY: Final = 10
#: Pause before coordination is asked again after an error.
_RETRY_MS: Final = 500
#: A name of a batch is kept for so long: more than a producer retries.
BATCH_MS: Final = 24 * 3_600_000


class TimelineService:
    """See the module. Use as an async context manager."""

    def __init__(
        self,
        coordinator: Coordinator,
        stores: Stores,
        *,
        node: str,
        clock: Clock,
        registry: CollectorRegistry,
        tags: dict[str, str],
        drift_ms_max: int,
        rng: random.Random,
        address: str = "",
        version: str = "",
        roles: Sequence[str] = ("broker",),
        crowd: Crowd = Crowd(),
        leases: LeaseSource | None = None,
        prober: Prober | None = None,
        dated: Sequence[str] = (),
        dated_tls: ssl.SSLContext | None = None,
        topics: Topics | None = None,
    ) -> None:
        """`drift_ms_max`: how far our clock may be off; `tags`: labels of every series; `leases`:
        the lease of this node in its cluster, None where there is no other; `prober`: probes the
        other nodes; `address`: where clients reach this one; `crowd`: how many consumers it should
        have; `dated`: members of the coordination service that can be asked for their time, with
        `dated_tls` if they want that; `topics`: where dead letters can go."""
        self._stores = stores
        self._node = node
        self._address = address
        self._version = version
        self._roles = list(roles)
        self._clock = clock
        self._coordinator = coordinator
        self._leases = leases
        self.catalog = Catalog(coordinator, stores, node=node, leases=leases)
        self.health = Health(jump_ms_max=drift_ms_max, one_store=stores.news is not None)
        self.drift = Drift(threshold_ms=drift_ms_max, fresh_ms=60_000)
        self.metrics = TimelineMetrics(registry, tags)
        self._busyness = Busyness()
        #: Set when there is something new to report to the other brokers.
        self._news = asyncio.Event()
        self._roster = None if leases is None else self._join(leases, crowd)

        self._clocks = Clocks(
            clock,
            health=self.health,
            drift=self.drift,
            metrics=self.metrics,
            coordinator=coordinator,
            dated=DatedService(dated, clock=clock, drift=self.drift, tls=dated_tls),
            storage_ms=self._storage_ms,
            brokers=lambda: {} if self._roster is None else self._roster.addresses(),
            prober=prober,
        )
        self._context = Context(
            clock,
            rng,
            self.health,
            self.drift,
            self.metrics,
            self._others,
            self._news.set,
            self._better,
            shortest_lease_ms(drift_ms_max),
        )

        self.timelines: dict[str, RunningTimeline] = {}
        self._records: dict[str, TimelineRecord] = {}
        self._requests = Requests(self._context, self.timelines, self)
        #: For clients that have no session: the node's HTTP.
        self.receiver = Receiver(self._requests, self._context, node=node)
        self._forwarder = Forwarder(
            self._requests,
            self.timelines,
            topics=topics,
            is_mine=self._is_mine,
            clock=clock,
            metrics=self.metrics,
        )
        self._dispatcher = Dispatcher(self._requests, self.metrics)
        self._doubted = ""
        self._watch: Watch | None = None
        if stores.news is not None:
            self._watch = Watch(stores.news, self.timelines, clock.wall_ms)
        self._syncing = asyncio.Lock()
        self._tasks = Tasks()
        self._finishing: asyncio.Task[None] | None = None

    def _join(self, leases: LeaseSource, crowd: Crowd) -> Roster:
        leases.on_lease.append(self._news.set)
        return Roster(
            self._coordinator,
            node=self._node,
            address=self._address,
            version=self._version,
            roles=self._roles,
            crowd=crowd,
            leases=leases,
            peers=self.health.peers,
            clock=self._clock,
            on_bytes=lambda direction, size: self.metrics.moved("", direction, "sync", size),
        )

    # Life

    async def __aenter__(self) -> "TimelineService":
        await self._sweep()
        await self.catalog.adopt()
        self._finish_later()
        await self._sync()
        self._tasks.keep(partial(_again, self._follow), name="timeline/catalog")
        self._tasks.keep(partial(_again, self._keep_up), name="timeline/upkeep")
        self._tasks.keep(partial(_again, self._clocks.compare), name="timeline/clocks")
        self._tasks.keep(self._forwarder.run, name="timeline/dead")
        if self._watch is not None:
            self._tasks.keep(partial(_again, self._watch.follow), name="timeline/watch")
            self._tasks.keep(partial(_again, self._watch.tell_others), name="timeline/tell")
        if self._roster is not None:
            await self._roster.start()
            self._tasks.keep(partial(_again, self._report), name="timeline/report")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.health.inactive = True
        await self._tasks.stop()
        if self._roster is not None and self._leases is not None:
            await _quietly(self._roster.leave(), "roster")
            await self._roster.stop()
            self._leases.on_lease.remove(self._news.set)
        await self.receiver.stop()
        for running in list(self.timelines.values()):
            await running.end(deleted=False)
        self.timelines.clear()
        await self._stores.close()

    def report(self) -> Report:
        """How this broker is, for `/readyz` and the overseer."""
        return self.health.report(now_ms=self._clock.wall_ms())

    # Frames

    def __call__(
        self, connection: Connection, frame: memoryview, access: Access = EVERYTHING
    ) -> Reply:
        return self._dispatcher(frame, access)

    async def answer(self, message: Request) -> Answer:
        """What a request is answered with. Raises `DovetailError`."""
        return await self._dispatcher.answer(message)

    # Commands about timelines

    async def create(self, name: str, config: TimelineConfig) -> None:
        """Makes a timeline and opens it here. Raises `TopicExists`, `InvalidInput`."""
        await self._check_dead_to(name, config.dead_to)
        await self.catalog.create(name, config)
        await self._sync()

    async def alter(self, name: str, settings: Mapping[str, frames.SettingValue]) -> None:
        """Changes settings of a timeline, here at once. Raises `InvalidInput`, `TopicUnknown`."""
        await self._check_dead_to(name, str(settings.get("dead_to", "")))
        await self.catalog.alter(name, settings)
        await self._sync()

    async def _check_dead_to(self, name: str, dead_to: str) -> None:
        if dead_to:
            self._forwarder.check(name, dead_to, await self.catalog.records())

    async def drop(self, name: str) -> None:
        """Takes a timeline away from everybody. Raises `TopicUnknown`."""
        await self.catalog.delete(name)
        await self._sync()
        self._finish_later()

    async def states(self) -> list[tuple[str, str]]:
        """Names of all timelines with their states, sorted."""
        records = (await self.catalog.records()).values()
        return sorted((record.name, str(record.state)) for record in records)

    def is_ready(self, name: str) -> bool:
        """Whether the catalog has a timeline that clients may use."""
        record = self._records.get(name)
        return record is not None and record.state == "ready"

    async def look_for(self, name: str) -> None:
        """Opens a timeline that is there, though the news of it has not reached this broker."""
        if await self.catalog.is_ready(name):
            await self._sync()

    def brokers(self, timeline: str) -> list[frames.BrokerState]:
        """The brokers of the cluster, the best one for a client of the timeline first."""
        if self._roster is not None:
            return self._roster.brokers(timeline, self._clocks.latency_ms)
        report = self.report()
        alone = frames.BrokerState(
            self._node,
            self._address,
            self._roles,
            self._version,
            report.condition.value,
            [text for _, text in report.reasons],
            sorted(self.timelines),
            sum(len(running.consumers) for running in self.timelines.values()),
            round(self._busyness.load, 2),
        )
        return [alone]

    # The other brokers

    def _others(self, record: TimelineRecord) -> Sequence[Attendee]:
        return () if self._roster is None else self._roster.others(record)

    def _better(self, timeline: str, consumer: bool) -> str:
        return "" if self._roster is None else self._roster.better(timeline, consumer=consumer)

    def _is_mine(self, timeline: str) -> bool:
        return self._roster is None or self._roster.is_mine(timeline)

    async def _report(self) -> None:
        await self._news.wait()
        self._news.clear()
        assert self._roster is not None
        consumers = {name: running.loader.known() for name, running in self.timelines.items()}
        await self._roster.report(self.report(), consumers, self._busyness.load)

    # Following the catalog

    async def _sync(self) -> None:
        """Opens what is ready and not open, ends what is not there any more."""
        async with self._syncing:
            records = await self.catalog.records()
            self._records = records
            for name, running in list(self.timelines.items()):
                record = records.get(name)
                if record is None or record.id != running.record.id or record.state != "ready":
                    del self.timelines[name]
                    self._requests.forget(running)
                    # Closing a large file takes its time, and who deletes should not wait for it.
                    self._start(partial(self._end, running))
                    self.metrics.forget(name)
                    _log.info("timeline ended here", timeline=name)

            unopened: dict[str, str] = {}
            for name, record in records.items():
                if record.state != "ready":
                    continue
                if name not in self.timelines:
                    if why := await self._open(record):
                        unopened[name] = why
                elif record.config != self.timelines[name].record.config:
                    self.timelines[name].alter(record)
                    _log.info("timeline altered here", timeline=name)
            self.health.unopened = unopened

    async def _end(self, running: RunningTimeline) -> None:
        await running.end(deleted=True)
        # Last: commands that were under way may still have failed.
        self.health.forget_timeline(running.record.name)

    async def _open(self, record: TimelineRecord) -> str:
        """Why it could not be opened; empty if it was."""
        try:
            store = await self._stores.open(record.id)
        except DovetailError as error:
            # One timeline that cannot be opened is no reason not to serve the others.
            if self.health.unopened.get(record.name) != str(error):
                _log.error("timeline not opened", timeline=record.name, error=str(error))
            return str(error)
        self.timelines[record.name] = RunningTimeline(record, store, self._context, self._watch)
        return ""

    async def _follow(self) -> None:
        try:
            await self.catalog.changed()
        except WatchGap:
            pass
        await self._sync()

    async def _sweep(self) -> None:
        """Removes storage that no entry names; only where nobody else can be making some.

        Raises `Damaged` if the coordination service never gave one of the ids: it was lost or is
        an old copy, so that an entry that it lacks says nothing.
        """
        if self._stores.news is not None:
            return
        known = {record.id for record in (await self.catalog.records()).values()}
        unnamed = await self._stores.existing() - known
        given = await self.catalog.last_given()
        newest = max(unnamed, default=0)
        if newest > given:
            raise Damaged(
                f"the data folder holds timeline number {newest}, but the coordination service "
                f"has given numbers up to {given} only: it lost its state, or is an old copy. "
                "Restore it from a newer copy; to give the timelines up, move the folder "
                "'timelines' away"
            )
        for number in unnamed:
            _log.warning("storage of no timeline removed", id=int(number))
            await self._stores.drop(TimelineId(number))

    # Upkeep

    async def _keep_up(self) -> None:
        for turn in range(_TRIM_EVERY):
            await asyncio.sleep(UPKEEP_MS / 1000)
            now_ms = self._clock.wall_ms()
            self._clocks.judge(now_ms)
            used_ms = time.process_time() * 1000
            self._busyness.on_times(used_ms=used_ms, now_ms=self._clock.monotonic_ms())
            self.metrics.load(self._busyness.load)
            self.metrics.health(self.health, self.drift, now_ms=now_ms)
            self._news.set()

            if turn % _FINISH_EVERY == 0 and not self.health.drift_reason:
                self._finish_later()
                if self.health.unopened:
                    await _quietly(self._sync(), "catalog")
            await self.look_after()

        self._doubt_one()
        if not self.health.drift_reason:
            for running in list(self.timelines.values()):
                if running.upkeep.untrimmed:
                    before_ms = self._clock.wall_ms() - BATCH_MS
                    trimming = running.upkeep.trim(batches_before_ms=before_ms)
                    await _quietly(trimming, running.record.name)

    def _doubt_one(self) -> None:
        """Has one timeline after another looked after though nothing is known to have changed."""
        names = sorted(self.timelines)
        if names:
            self._doubted = next((name for name in names if name > self._doubted), names[0])
            self.timelines[self._doubted].upkeep.on_change()

    async def look_after(self) -> None:
        """Fires schedules ahead of their time, counts messages, and wakes every timeline."""
        for running in list(self.timelines.values()):
            if not self.health.drift_reason:
                await _quietly(running.upkeep.fire_due(), running.record.name)
            await _quietly(running.upkeep.refresh(), running.record.name)
            running.wake()
        self._forwarder.wake()
        self._requests.prune()
        self.receiver.prune()

    def _storage_ms(self) -> Awaitable[int] | None:
        """Asks the store for its time; None if it has no clock of its own."""
        return self._watch.time_ms() if self._watch is not None and self.timelines else None

    # Background

    def _finish_later(self) -> None:
        """Finishes what was begun and left; a storage that takes its time holds up nobody."""
        if self._finishing is None or self._finishing.done():
            self._finishing = self._start(self.catalog.finish)

    def _start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> "asyncio.Task[None]":
        async def begin() -> None:
            await _quietly(work(), "catalog")

        return self._tasks.start(begin(), name="timeline/finish")


async def _again(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Does it again and again; what the cluster or the storage refuses, later."""
    while True:
        try:
            await work()
        except DovetailError as error:
            _log.warning("upkeep of timelines failed; tried again", error=str(error))
            await asyncio.sleep(_RETRY_MS / 1000)


async def _quietly(work: Coroutine[Any, Any, Any], name: str) -> None:
    try:
        await work
    except DovetailError as error:
        _log.warning("upkeep failed", timeline=name, error=str(error))
