"""Answers the requests of operators: create, alter, pause, purge and delete timelines; inspect and
change messages, dead letters and schedules.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from dovetail.errors import InvalidInput, NotFound, TopicUnknown, Unavailable
from dovetail.timeline import frames
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.context import Context
from dovetail.timeline.engine.schedule import new_schedule
from dovetail.timeline.engine.signals import suggested
from dovetail.timeline.engine.where import SHOWN_MAX
from dovetail.timeline.message import MessageId, Shown, Status
from dovetail.timeline.running import RunningTimeline
from dovetail.wire.calls import Answer

#: Bytes of messages that one answer shows, and twice that at most: a client takes 160 MiB at once,
#: and a thousand of the largest messages would not fit into memory.
FOUND_BYTES: Final = 16 * 1024 * 1024

#: Messages that one request by filter looks at: some milliseconds of a store.
SELECT_MAX: Final = 1_000


class Timelines(Protocol):
    """All timelines of the cluster, as the service knows them."""

    def is_ready(self, name: str) -> bool:
        """Whether the catalog has a timeline that clients may use."""
        ...

    async def look_for(self, name: str) -> None:
        """Opens a timeline that is there, though the news of it has not reached this broker."""
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

    def running(self, name: str) -> RunningTimeline:
        found = self._timelines.get(name)
        if found is not None:
            return found
        if self._all.is_ready(name):
            raise Unavailable(f"timeline {name!r} cannot be opened here at the moment")
        raise TopicUnknown(f"no timeline {name!r}; create it first (dovetail timeline create)")

    async def find(self, name: str) -> None:
        """Opens a timeline that another broker has just made, before anybody hears of none."""
        if name not in self._timelines and not self._all.is_ready(name):
            await self._all.look_for(name)

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
        running = self.running(message.timeline)
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
        backlog = running.upkeep.counts.due

        return frames.Signals(
            backlog,
            arrivals,
            done,
            list(running.upkeep.windows_ahead),
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
        running = self.running(message.timeline)
        await running.upkeep.count()
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
            running.upkeep.counts,
            self.signals(running, better=self._context.better(running.record.name, True)),
            consumers,
            running.lateness.percentile(50),
            running.lateness.percentile(99),
        )

    async def look_up(self, message: frames.LookUp) -> Answer:
        running = self.running(message.timeline)
        now_ms, step = self._context.now_ms(), _step(running)
        found: list[Shown | None] = []
        for at in range(0, len(message.ids), step):
            ids = message.ids[at : at + step]
            found += await running.use("look", lambda s, ids=ids: s.look_up(ids, now_ms=now_ms))  # type: ignore[misc]
            _check_size(found)
        for at in range(0, len(message.keys), step):
            keys = message.keys[at : at + step]
            found += await running.use(
                "look",
                lambda s, keys=keys: s.look_up_keys(keys, now_ms=now_ms),  # type: ignore[misc]
            )
            _check_size(found)
        return frames.Found(found)

    async def peek(self, message: frames.Peek) -> Answer:
        running = self.running(message.timeline)
        now_ms, step = self._context.now_ms(), _step(running)
        for limit in range(min(step, message.limit), message.limit + step, step):
            wanted = min(limit, message.limit)
            found = await running.use(
                "peek",
                lambda s, wanted=wanted: s.peek(now_ms=now_ms, limit=wanted),  # type: ignore[misc]
            )
            if len(found) < wanted or _size(found) >= FOUND_BYTES:
                break
        return frames.Found(list(found))

    async def cancel(self, message: frames.Cancel) -> Answer:
        running = self.running(message.timeline)
        now_ms = self._context.now_ms()
        statuses = await running.use("cancel", lambda s: s.cancel(message.ids, now_ms=now_ms))
        return self._counted_statuses(running, "cancel", statuses)

    async def move(self, message: frames.Move) -> Answer:
        running = self.running(message.timeline)
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
        running, after = self.running(message.timeline), MessageId(message.after)
        step, found = _step(running), list[Shown]()
        while len(found) < message.limit and _size(found) < FOUND_BYTES:
            wanted = min(step, message.limit - len(found))
            page = await running.use(
                "dead",
                lambda s, after=after, wanted=wanted: s.dead(after=after, limit=wanted),  # type: ignore[misc]
            )
            found += page
            if len(page) < wanted:
                break
            after = page[-1].id
        return frames.Found(list(found))

    async def replay(self, message: frames.Replay) -> Answer:
        running = self.running(message.timeline)
        now_ms = self._context.dated_ms()
        statuses = await running.use("replay", lambda s: s.replay(message.ids, due_ms=now_ms))
        running.stored(now_ms)
        return frames.Statuses(statuses)

    async def drop_dead(self, message: frames.DropDead) -> Answer:
        running = self.running(message.timeline)
        statuses = await running.use("drop", lambda s: s.drop_dead(message.ids))
        return self._counted_statuses(running, "dropped", statuses)

    # By filter

    async def select(self, message: frames.Select) -> Answer:
        """Looks at a page of messages, and changes those that fit. The work of one request is
        bounded; `after` of the answer goes on with the next page, also after a failure."""
        action, where = message.action, message.where
        dead = message.dead if action == "preview" else action in ("replay", "drop")
        where.check(dead=dead)
        if where.is_empty and action in ("cancel", "move", "drop"):
            raise InvalidInput(f"say which ones: {action} by an empty filter would be of all")

        running, now_ms = self.running(message.timeline), self._context.now_ms()
        after = MessageId(message.after)
        page = await running.use(
            "walk", lambda s: s.walk(after=after, limit=SELECT_MAX, dead=dead, now_ms=now_ms)
        )
        ids = [shown.id for shown in page if where.fits(shown, now_ms=now_ms)]
        done = await self._change(message, ids) if ids else 0
        last = page[-1].id if page else message.after
        return frames.Selected(len(ids), done, last, len(page) == SELECT_MAX, ids[:SHOWN_MAX])

    async def _change(self, message: frames.Select, ids: list[MessageId]) -> int:
        """Does it to these, as by their ids; how many were changed."""
        timeline = message.timeline
        match message.action:
            case "preview":
                return 0
            case "cancel":
                answer = await self.cancel(frames.Cancel(timeline, ids))
            case "move":
                moves = [(int(identity), message.due_ms) for identity in ids]
                answer = await self.move(frames.Move(timeline, moves))
            case "replay":
                answer = await self.replay(frames.Replay(timeline, ids))
            case "drop":
                answer = await self.drop_dead(frames.DropDead(timeline, ids))
        assert isinstance(answer, frames.Statuses)
        return answer.statuses.count(Status.OK)

    # Schedules

    async def put_schedule(self, message: frames.PutSchedule) -> Answer:
        running = self.running(message.timeline)
        running.check_open()
        now_ms = self._context.dated_ms()
        size, size_max = (
            len(message.body) + len(message.headers),
            running.record.config.body_bytes_max,
        )
        if size > size_max:
            raise InvalidInput(f"body and headers of {size} bytes; this timeline takes {size_max}")

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
        await running.upkeep.fire_schedules()
        return frames.Done()

    async def drop_schedule(self, message: frames.DropSchedule) -> Answer:
        running = self.running(message.timeline)
        if not await running.use("schedule", lambda s: s.drop_schedule(message.name)):
            raise NotFound(f"timeline {message.timeline!r} has no schedule {message.name!r}")
        return frames.Done()

    async def schedules(self, message: frames.Schedules) -> Answer:
        running = self.running(message.timeline)
        found = await running.use("schedule", lambda s: s.schedules())
        states = [
            frames.ScheduleState(s.name, s.next_ms, s.cron, s.zone, s.every_ms) for s in found
        ]
        return frames.ScheduleList(states)


def _step(running: RunningTimeline) -> int:
    """How many messages are read at once, however large they are."""
    return max(1, min(SELECT_MAX, FOUND_BYTES // running.record.config.body_bytes_max))


def _size(found: Sequence[Shown | None]) -> int:
    return sum(len(shown.body) + len(shown.headers) for shown in found if shown is not None)


def _check_size(found: Sequence[Shown | None]) -> None:
    if _size(found) > 2 * FOUND_BYTES:
        raise InvalidInput(
            f"these messages have more than {2 * FOUND_BYTES} bytes; look up fewer at once"
        )
