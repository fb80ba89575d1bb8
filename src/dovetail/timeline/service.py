"""The timelines of a broker: a `Dispatch` for their frames, and the life of each of them.

Which timelines there are is in the coordination service (`catalog`), and watched: one that becomes
ready is opened here, one that is deleted ends here, its clients are told, and whoever becomes its
master removes its storage. So a command about a timeline is answered when the catalog says so, and
the rest happens on every broker by itself, also after one of them died half-way.

Upkeep, every so often and never while our clock is wrong: schedules are fired ahead of their time,
messages are counted, dead letters are trimmed, clocks are compared.
"""

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry

from dovetail.access import EVERYTHING, Access
from dovetail.buffers import Buffer
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.errors import DovetailError, WatchGap
from dovetail.logging import get_logger
from dovetail.timeline import frames, permission
from dovetail.timeline.carrying import Carried, Surroundings
from dovetail.timeline.catalog import Catalog, TimelineRecord
from dovetail.timeline.engine.drift import Drift, Target
from dovetail.timeline.engine.health import Health, Report
from dovetail.timeline.engine.selection import Crowd
from dovetail.timeline.engine.signals import Busyness
from dovetail.timeline.engine.window import Attendee
from dovetail.timeline.frame_codec import Asked, decode_request, encode_answer, failure_of
from dovetail.timeline.message import TimelineId
from dovetail.timeline.metrics import TimelineMetrics
from dovetail.timeline.neighbours import DatedService, Neighbours
from dovetail.timeline.requests import Requests
from dovetail.timeline.roster import Roster
from dovetail.timeline.standing import Standing
from dovetail.timeline.stores.protocol import Stores
from dovetail.wire import Connection, PipelinedReply, Reply

_log = get_logger("timeline")

#: How often the broker looks after its timelines.
UPKEEP_MS: Final = 500
#: Upkeeps between two trims, and two looks at what others left unfinished.
_TRIM_EVERY: Final = 120
_FINISH_EVERY: Final = 10
#: Time between two comparisons of clocks.
CLOCK_MS: Final = 3_000
#: A key that is read to see how long that takes.
_PING: Final = "/timelines/last"
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
        standing: Standing | None = None,
        dated: Sequence[str] = (),
        dated_tls: ssl.SSLContext | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`drift_ms_max`: how far our clock may be off; `tags`: labels of every series; `standing`:
        that of this broker in its cluster, None where there is no other; `address`: where clients
        reach it; `crowd`: how many consumers it should have; `dated`: members of the coordination
        service that can be asked for their time, with `dated_tls` if they want that; `tls`: for
        the way to other brokers."""
        self._stores = stores
        self._node = node
        self._address = address
        self._version = version
        self._roles = list(roles)
        self._clock = clock
        self._coordinator = coordinator
        lease = None if standing is None else lambda: standing.lease
        self.catalog = Catalog(coordinator, stores, node=node, lease=lease)
        self.health = Health(jump_ms_max=drift_ms_max)
        #: Set when there is something new to tell the other brokers.
        self._told = asyncio.Event()
        #: Set when clocks are to be compared at once.
        self._compare = asyncio.Event()
        self._drifted = False
        self.drift = Drift(threshold_ms=drift_ms_max, fresh_ms=60_000)
        self.metrics = TimelineMetrics(registry, tags)
        self._busyness = Busyness()
        self._neighbours = Neighbours(node=node, clock=clock, drift=self.drift, tls=tls)
        self._dated = DatedService(dated, clock=clock, drift=self.drift, tls=dated_tls)
        self._roster = None if standing is None else self._join(standing, crowd)
        self._around = Surroundings(
            clock,
            rng,
            self.health,
            self.drift,
            self.metrics,
            self._others,
            self._told.set,
            self._better,
        )
        self.timelines: dict[str, Carried] = {}
        self._records: dict[str, TimelineRecord] = {}
        self._requests = Requests(self._around, self.timelines, is_ready=self._is_ready)
        self._syncing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing: set[asyncio.Task[Any]] = set()
        self._finish: asyncio.Task[Any] | None = None

    def _join(self, standing: Standing, crowd: Crowd) -> Roster:
        standing.on_change.append(self._told.set)
        return Roster(
            self._coordinator,
            node=self._node,
            address=self._address,
            version=self._version,
            roles=self._roles,
            crowd=crowd,
            standing=standing,
            peers=self.health.peers,
            clock=self._clock,
            on_bytes=lambda way, size: self.metrics.moved("", way, "sync", size),
        )

    # Life

    async def __aenter__(self) -> "TimelineService":
        await self._sweep()
        self._finish_later()
        await self._sync()
        self._tasks = [
            asyncio.create_task(self._for_ever(self._follow)),
            asyncio.create_task(self._for_ever(self._keep_up)),
            asyncio.create_task(self._for_ever(self._compare_clocks)),
        ]
        if self._roster is not None:
            self._tasks += [
                asyncio.create_task(self._for_ever(self._tell)),
                asyncio.create_task(self._for_ever(self._listen)),
            ]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.health.inactive = True
        for task in (*self._tasks, *self._finishing):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._finishing, return_exceptions=True)
        if self._roster is not None:
            await _quietly(self._roster.leave(), "roster")
        await self._neighbours.close()
        for carried in list(self.timelines.values()):
            await carried.end(deleted=False)
        self.timelines.clear()
        await self._stores.close()

    def report(self) -> Report:
        """How this broker is, for `/readyz` and the overseer."""
        return self.health.report(now_ms=self._clock.wall_ms())

    # Frames

    def __call__(
        self, connection: Connection, frame: memoryview, access: Access = EVERYTHING
    ) -> Reply:
        asked = decode_request(frame)
        if isinstance(asked.message, frames.Hello):
            welcome = frames.Welcome(frames.VERSION, self._node, self._clock.wall_ms())
            return encode_answer(asked.correlation_id, welcome)
        return PipelinedReply(asyncio.get_running_loop().create_task(self._answered(asked, access)))

    async def _answered(self, asked: Asked, access: Access) -> list[Buffer]:
        name = self._requests.timeline_of(asked.message)
        try:
            # A session that is over has no name, and is told so.
            if named := name or getattr(asked.message, "timeline", ""):
                permission.demand(access, asked.message, named)
            answer = await self.answer(asked.message)
            if isinstance(answer, frames.Listed):
                answer = permission.what_is_visible(access, answer)
        except DovetailError as error:
            self.metrics.request(asked.key.name.lower(), name, failed=True)
            return encode_answer(asked.correlation_id, failure_of(error))
        self.metrics.request(asked.key.name.lower(), name, failed=False)
        return encode_answer(asked.correlation_id, answer)

    async def answer(self, message: frames.Request) -> frames.Answer:
        """What a request is answered with. Raises `DovetailError`."""
        match message:
            case frames.Create(timeline, config):
                with _Counted(self.metrics, "create"):
                    await self.catalog.create(timeline, config)
                    await self._sync()
                return frames.Done()
            case frames.Drop(timeline):
                with _Counted(self.metrics, "delete"):
                    await self.catalog.delete(timeline)
                    await self._sync()
                self._finish_later()
                return frames.Done()
            case frames.ListTimelines():
                records = (await self.catalog.records()).values()
                listed = sorted((record.name, record.state) for record in records)
                return frames.Listed([(name, str(state)) for name, state in listed])
            case frames.Cluster(timeline):
                return frames.ClusterState(self.brokers(timeline))
        return await self._requests.answer(message)

    def brokers(self, timeline: str) -> list[frames.BrokerState]:
        """The brokers of the cluster, the best one for a client of the timeline first."""
        if self._roster is not None:
            return self._roster.brokers(timeline, self._neighbours.latency_ms)
        report = self.report()
        alone = frames.BrokerState(
            self._node,
            self._address,
            self._roles,
            self._version,
            report.condition.value,
            [text for _, text in report.reasons],
            sorted(self.timelines),
            sum(len(carried.consumers) for carried in self.timelines.values()),
            round(self._busyness.load, 2),
        )
        return [alone]

    def _is_ready(self, name: str) -> bool:
        record = self._records.get(name)
        return record is not None and record.state == "ready"

    # The other brokers

    def _others(self, record: TimelineRecord) -> Sequence[Attendee]:
        return () if self._roster is None else self._roster.others(record)

    def _better(self, timeline: str) -> str:
        return "" if self._roster is None else self._roster.better(timeline)

    async def _tell(self) -> None:
        await self._told.wait()
        self._told.clear()
        assert self._roster is not None
        consumers = {
            name: [consumer.member for consumer in carried.consumers.values()]
            for name, carried in self.timelines.items()
        }
        await self._roster.tell(self.report(), consumers, self._busyness.load)

    async def _listen(self) -> None:
        assert self._roster is not None
        try:
            await self._roster.follow()
        except WatchGap:
            pass

    # Following the catalog

    async def _sync(self) -> None:
        """Opens what is ready and not open, ends what is not there any more."""
        async with self._syncing:
            records = await self.catalog.records()
            self._records = records
            for name, carried in list(self.timelines.items()):
                record = records.get(name)
                if record is None or record.id != carried.record.id or record.state != "ready":
                    del self.timelines[name]
                    self._requests.forget(carried)
                    # Closing a large file takes its time, and who deletes should not wait for it.
                    self._later(carried.end(deleted=True))
                    self.health.forget_timeline(name)
                    self.metrics.forget(name)
                    _log.info("timeline ended here", timeline=name)
            for name, record in records.items():
                if record.state == "ready" and name not in self.timelines:
                    await self._open(record)

    async def _open(self, record: TimelineRecord) -> None:
        try:
            store = await self._stores.open(record.id)
        except DovetailError as error:
            # One timeline that cannot be opened is no reason not to serve the others.
            _log.error("timeline not opened", timeline=record.name, error=str(error))
            return
        shared = self._stores.shared
        self.timelines[record.name] = Carried(record, store, self._around, shared=shared)

    async def _follow(self) -> None:
        try:
            await self.catalog.changed()
        except WatchGap:
            pass
        await self._sync()

    async def _sweep(self) -> None:
        """Removes storage that no entry names; only where nobody else can be making some."""
        if self._stores.shared:
            return
        known = {record.id for record in (await self.catalog.records()).values()}
        for number in await self._stores.existing() - known:
            _log.warning("storage of no timeline removed", id=int(number))
            await self._stores.drop(TimelineId(number))

    # Upkeep

    async def _keep_up(self) -> None:
        for turn in range(_TRIM_EVERY):
            await asyncio.sleep(UPKEEP_MS / 1000)
            now_ms = self._clock.wall_ms()
            self._judge_clock(now_ms)
            used_ms = time.process_time() * 1000
            self._busyness.on_times(used_ms=used_ms, now_ms=self._clock.monotonic_ms())
            self.metrics.load(self._busyness.load)
            self.metrics.health(self.health, self.drift, now_ms=now_ms)
            self._told.set()
            if turn % _FINISH_EVERY == 0 and not self.health.drift_reason:
                self._finish_later()
            await self.look_after()
        if not self.health.drift_reason:
            for carried in list(self.timelines.values()):
                before_ms = self._clock.wall_ms() - BATCH_MS
                await _quietly(carried.trim(batches_before_ms=before_ms), carried.record.name)

    async def look_after(self) -> None:
        """Fires schedules ahead of their time, counts messages, and wakes every timeline."""
        for carried in list(self.timelines.values()):
            if not self.health.drift_reason:
                await _quietly(carried.fire_schedules(), carried.record.name)
            await _quietly(carried.refresh(), carried.record.name)
            carried.wake()
        self._requests.prune()

    def _finish_later(self) -> None:
        """Finishes what somebody has begun; a storage that takes its time holds up nobody."""
        if self._finish is None or self._finish.done():
            self._finish = self._later(self.catalog.finish())

    # Clocks

    async def _compare_clocks(self) -> None:
        if self.health.jumped:
            self.drift.forget_all()
            self.health.jumped = False
        await asyncio.gather(self._ask_storage(), self._ask_coordination(), self._ask_others())
        self._judge_clock(self._clock.wall_ms())
        self._compare.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOCK_MS / 1000):
                await self._compare.wait()

    def _judge_clock(self, now_ms: int) -> None:
        if self.health.jumped:
            # Nothing is known by this clock yet.
            self._compare.set()
            return
        reason = self.drift.verdict(now_ms=now_ms).reason
        if bool(reason) != self._drifted:
            text = reason or "the clock is right again"
            _log.warning("drift", pushing=not reason, reason=text)
        self._drifted = bool(reason)
        self.health.drift_reason = reason

    async def _ask_storage(self) -> None:
        if not self._stores.shared:
            return
        for carried in list(self.timelines.values())[:1]:
            sent_ms, began_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
            try:
                theirs_ms = await carried.use("clock", lambda store: store.time_ms())
            except DovetailError as error:
                _log.warning("storage was not asked for its time", error=str(error))
                return
            took_ms = self._clock.monotonic_ms() - began_ms
            self.metrics.way("storage", took_ms)
            self.drift.on_answer(
                Target.STORAGE,
                "store",
                sent_ms=sent_ms,
                theirs_ms=theirs_ms,
                received_ms=sent_ms + took_ms,
            )

    async def _ask_coordination(self) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            await self._coordinator.get(_PING)
        except DovetailError as error:
            _log.warning("coordination did not answer", error=str(error))
            return
        self.metrics.way("sync", self._clock.monotonic_ms() - began_ms)
        await self._dated.ask()

    async def _ask_others(self) -> None:
        if self._roster is None:
            return
        await self._neighbours.ask(self._roster.addresses())
        self.metrics.way("broker", max(self._neighbours.latency_ms.values(), default=0.0))

    async def _for_ever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - looking after timelines outlives a failure
                _log.warning("upkeep of timelines failed; tried again", error=repr(error))
                await asyncio.sleep(_RETRY_MS / 1000)

    def _later(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        task = asyncio.create_task(_quietly(work, "catalog"))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task


class _Counted:
    """Counts a command about a timeline, and whether it failed."""

    def __init__(self, metrics: TimelineMetrics, op: str) -> None:
        self._metrics = metrics
        self._op = op

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._metrics.timeline(self._op, failed=kind is not None)


async def _quietly(work: Coroutine[Any, Any, Any], name: str) -> None:
    try:
        await work
    except DovetailError as error:
        _log.warning("upkeep failed", timeline=name, error=str(error))
