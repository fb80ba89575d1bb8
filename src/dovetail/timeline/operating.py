"""What operators ask about timelines: made, altered, paused, purged and deleted; messages, dead
letters and schedules looked at and changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from dovetail.errors import InvalidInput, NotFound, TopicUnknown, Unavailable
from dovetail.timeline import frames
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.context import Context
from dovetail.timeline.engine.schedule import new_schedule
from dovetail.timeline.engine.signals import suggested
from dovetail.timeline.message import MessageId, Status
from dovetail.timeline.running import RunningTimeline
from dovetail.wire.calls import Answer


class Timelines(Protocol):
    """All timelines of the cluster, as the service knows them."""

    def is_ready(self, name: str) -> bool:
        """Whether the catalog has a timeline that clients may use."""
        ...

    async def create(self, name: str, config: TimelineConfig) -> None: ...

    async def alter(self, name: str, settings: Mapping[str, frames.SettingValue]) -> None: ...

    async def drop(self, name: str) -> None: ...

    async def states(self) -> list[tuple[str, str]]:
        """Names with their states, sorted."""
        ...

    def brokers(self, timeline: str) -> list[frames.BrokerState]:
        """The brokers of the cluster, the best one for a client of the timeline first."""
        ...


class Operating:
    """The requests of operators."""

    def __init__(
        self, context: Context, running: Mapping[str, RunningTimeline], timelines: Timelines
    ) -> None:
        self._context = context
        self._timelines = running
        self._all = timelines

    def _running(self, name: str) -> RunningTimeline:
        found = self._timelines.get(name)
        if found is not None:
            return found
        if self._all.is_ready(name):
            raise Unavailable(f"timeline {name!r} cannot be opened here at the moment")
        raise TopicUnknown(f"no timeline {name!r}")

    # Timelines

    async def create(self, message: frames.Create) -> Answer:
        with self._counted("create"):
            await self._all.create(message.timeline, message.config)
        return frames.Done()

    async def drop(self, message: frames.Drop) -> Answer:
        with self._counted("delete"):
            await self._all.drop(message.timeline)
        return frames.Done()

    async def alter(self, message: frames.Alter) -> Answer:
        with self._counted("alter"):
            await self._all.alter(message.timeline, message.settings)
        return frames.Done()

    async def purge(self, message: frames.Purge) -> Answer:
        running = self._running(message.timeline)
        now_ms, limit = self._context.now_ms(), message.limit
        count = await running.use("purge", lambda s: s.purge(now_ms=now_ms, limit=limit))
        self._context.metrics.messages(running.record.name, "cancel", good=count)
        return frames.Purged(count)

    async def list_timelines(self, message: frames.ListTimelines) -> Answer:
        return frames.Listed(await self._all.states())

    async def cluster(self, message: frames.Cluster) -> Answer:
        return frames.ClusterState(self._all.brokers(message.timeline))

    @contextmanager
    def _counted(self, op: str) -> Iterator[None]:
        """Counts a command about a timeline, and whether it failed."""
        failed = True
        try:
            yield
            failed = False
        finally:
            self._context.metrics.timeline(op, failed=failed)

    def signals(self, running: RunningTimeline, *, better: str) -> frames.Signals:
        """What clients need to react."""
        now_ms = self._context.now_ms()
        report = self._context.health.report(now_ms=now_ms)
        arrivals = running.arrivals.per_second(now_ms=now_ms)
        done = running.done.per_second(now_ms=now_ms)
        consumers = max(len(running.consumers), len(running.loader.windows.assignment.members))
        backlog = running.counts.due

        return frames.Signals(
            backlog,
            arrivals,
            done,
            list(running.windows_ahead),
            consumers,
            suggested(backlog=backlog, arrivals=arrivals, done=done, consumers=consumers),
            report.condition.value,
            [text for _, text in report.reasons],
            better,
            running.idle,
        )

    def _counted_statuses(
        self, running: RunningTimeline, op: str, statuses: list[Status]
    ) -> frames.Statuses:
        good = statuses.count(Status.OK)
        bad = len(statuses) - good
        self._context.metrics.messages(running.record.name, op, good=good, bad=bad)
        return frames.Statuses(statuses)

    # Looking

    async def describe(self, message: frames.Describe) -> Answer:
        running = self._running(message.timeline)
        await running.count()
        assignment = running.loader.windows.assignment
        consumers = []
        for consumer in running.consumers.values():
            share = assignment.share(consumer.member.id)
            state = frames.ConsumerState(
                consumer.member.id,
                consumer.member.rack,
                0 if share is None else len(share.primary),
                consumer.credit,
                consumer.latency_ms,
                consumer.leased,
                consumer.lease_ms,
            )
            consumers.append(state)

        return frames.Described(
            running.record.name,
            running.record.config,
            running.counts,
            self.signals(running, better=self._context.better(running.record.name, True)),
            consumers,
            running.lateness.percentile(50),
            running.lateness.percentile(99),
        )

    async def look_up(self, message: frames.LookUp) -> Answer:
        running = self._running(message.timeline)
        now_ms = self._context.now_ms()
        by_id = await running.use("look", lambda s: s.look_up(message.ids, now_ms=now_ms))
        by_key = await running.use("look", lambda s: s.look_up_keys(message.keys, now_ms=now_ms))
        return frames.Found([*by_id, *by_key])

    async def peek(self, message: frames.Peek) -> Answer:
        running = self._running(message.timeline)
        now_ms = self._context.now_ms()
        found = await running.use("peek", lambda s: s.peek(now_ms=now_ms, limit=message.limit))
        return frames.Found(list(found))

    async def cancel(self, message: frames.Cancel) -> Answer:
        running = self._running(message.timeline)
        now_ms = self._context.now_ms()
        statuses = await running.use("cancel", lambda s: s.cancel(message.ids, now_ms=now_ms))
        return self._counted_statuses(running, "cancel", statuses)

    async def move(self, message: frames.Move) -> Answer:
        running = self._running(message.timeline)
        now_ms = self._context.dated_ms()
        last_ms = now_ms + running.record.config.ahead_ms_max
        moves = [(MessageId(i), max(now_ms, due_ms)) for i, due_ms in message.moves]
        if any(due_ms > last_ms for _, due_ms in moves):
            raise InvalidInput(
                f"a due time beyond the {running.record.config.ahead_ms_max} ms that this "
                "timeline looks ahead"
            )
        statuses = await running.use("move", lambda s: s.move(moves, now_ms=now_ms))
        if moves:
            running.stored(min(due_ms for _, due_ms in moves))
        return frames.Statuses(statuses)

    # Dead letters

    async def dead(self, message: frames.Dead) -> Answer:
        running = self._running(message.timeline)
        found = await running.use(
            "dead", lambda s: s.dead(after=MessageId(message.after), limit=message.limit)
        )
        return frames.Found(list(found))

    async def replay(self, message: frames.Replay) -> Answer:
        running = self._running(message.timeline)
        now_ms = self._context.dated_ms()
        statuses = await running.use("replay", lambda s: s.replay(message.ids, due_ms=now_ms))
        running.stored(now_ms)
        return frames.Statuses(statuses)

    async def drop_dead(self, message: frames.DropDead) -> Answer:
        running = self._running(message.timeline)
        statuses = await running.use("drop", lambda s: s.drop_dead(message.ids))
        return self._counted_statuses(running, "dropped", statuses)

    # Schedules

    async def put_schedule(self, message: frames.PutSchedule) -> Answer:
        running = self._running(message.timeline)
        now_ms = self._context.dated_ms()
        if len(message.body) > running.record.config.body_bytes_max:
            raise InvalidInput(
                f"a body of {len(message.body)} bytes; this timeline takes "
                f"{running.record.config.body_bytes_max}"
            )

        schedule = new_schedule(
            message.name,
            message.body,
            now_ms=now_ms,
            cron=message.cron,
            zone=message.zone,
            every_ms=message.every_ms,
            headers=message.headers,
            priority=message.priority,
        )

        await running.use("schedule", lambda s: s.put_schedule(schedule))
        await running.fire_schedules()
        return frames.Done()

    async def drop_schedule(self, message: frames.DropSchedule) -> Answer:
        running = self._running(message.timeline)
        if not await running.use("schedule", lambda s: s.drop_schedule(message.name)):
            raise NotFound(f"timeline {message.timeline!r} has no schedule {message.name!r}")
        return frames.Done()

    async def schedules(self, message: frames.Schedules) -> Answer:
        running = self._running(message.timeline)
        found = await running.use("schedule", lambda s: s.schedules())
        states = [
            frames.ScheduleState(s.name, s.next_ms, s.cron, s.zone, s.every_ms) for s in found
        ]
        return frames.ScheduleList(states)
