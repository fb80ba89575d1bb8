"""What each request of a client does: from a checked message to an answer.

Every request that fails is answered with an error that says whose fault it is; none takes more than
itself down. Times of clients are taken as they are: a due time in the past means now.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from dovetail.errors import InvalidInput, NotFound, TopicUnknown, Unavailable
from dovetail.timeline import frames
from dovetail.timeline.carrying import Carried, Surroundings
from dovetail.timeline.engine.deal import Member
from dovetail.timeline.engine.drift import Target
from dovetail.timeline.engine.schedule import new_schedule
from dovetail.timeline.engine.signals import suggested
from dovetail.timeline.message import TIME_MS_MAX, Inserted, MessageId, NewMessage, Status

_SESSION_MAX: Final = 2**63 - 1
#: The part of all reports that is answered with a better broker, if there is one.
TELL_SHARE: Final = 0.2
#: The same where this one serves nobody well.
TELL_SHARE_UNWELL: Final = 0.5

_Handler = Callable[["Requests", Any], Awaitable[frames.Answer]]


class Requests:
    """The requests about timelines that are served here."""

    def __init__(
        self,
        around: Surroundings,
        timelines: Mapping[str, Carried],
        *,
        is_ready: Callable[[str], bool],
    ) -> None:
        """`is_ready`: whether the catalog has a timeline that clients may use."""
        self._around = around
        self._timelines = timelines
        self._is_ready = is_ready
        self._sessions: dict[int, Carried] = {}
        self._rng = random.SystemRandom()

    async def answer(self, message: frames.Request) -> frames.Answer:
        """Raises `DovetailError`."""
        return await _HANDLERS[type(message)](self, message)

    def timeline_of(self, message: frames.Request) -> str:
        """The timeline that a request is about, for metrics; empty if it is none that is here."""
        name = getattr(message, "timeline", "")
        carried = self._sessions.get(getattr(message, "session", 0))
        if carried is not None:
            return carried.record.name
        return name if name in self._timelines else ""

    def forget(self, carried: Carried) -> None:
        """Its sessions are over."""
        for session in [number for number, held in self._sessions.items() if held is carried]:
            del self._sessions[session]

    def prune(self) -> None:
        """Forgets sessions that ended by themselves, and gates of producers that are gone."""
        for session, carried in list(self._sessions.items()):
            if session not in carried.consumers and session not in carried.producers:
                del self._sessions[session]
        there = {
            producer.client
            for carried in self._timelines.values()
            for producer in carried.producers.values()
        }
        self._around.health.keep_producers(there)

    def _carried(self, name: str) -> Carried:
        found = self._timelines.get(name)
        if found is not None:
            return found
        if self._is_ready(name):
            raise Unavailable(f"timeline {name!r} cannot be opened here at the moment")
        raise TopicUnknown(f"no timeline {name!r}")

    def _of(self, session: int) -> Carried:
        found = self._sessions.get(session)
        if found is None:
            raise NotFound(f"session {session} is not open here; open one")
        return found

    # Sessions

    async def open(self, message: frames.Open) -> frames.Answer:
        carried = self._carried(message.timeline)
        session = self._rng.randrange(1, _SESSION_MAX)
        if message.lease_ms:
            member = Member(message.client, message.rack)
            carried.open_consumer(session, member, lease_ms=message.lease_ms)
        else:
            carried.open_producer(session, message.client)
        self._sessions[session] = carried
        return frames.Opened(session, carried.record.config)

    async def close(self, message: frames.Close) -> frames.Answer:
        carried = self._sessions.pop(message.session, None)
        if carried is not None:
            carried.close_session(message.session)
        return frames.Done()

    async def pause(self, message: frames.Pause) -> frames.Answer:
        carried = self._of(message.session)
        carried.consumer(message.session).end_waiting(TIME_MS_MAX)
        carried.wake()
        return frames.Done()

    async def report(self, message: frames.Report) -> frames.Answer:
        carried = self._of(message.session)
        now_ms = self._around.now_ms()
        target, name = Target.PRODUCER, ""
        if message.session in carried.consumers:
            consumer = carried.consumer(message.session)
            target, name = Target.CONSUMER, consumer.member.id
            consumer.latency_ms = max(0.0, message.latency_ms)
            consumer.leased = max(0, consumer.leased - message.handled - message.failed)
            carried.loader.on_latency(name, message.latency_ms)
            consumer.busy = message.busy
            if message.handled or message.failed:
                gate = self._around.health.consumers(carried.record.name)
                gate.on_outcome(good=message.handled >= message.failed, now_ms=now_ms)
        else:
            producer = carried.producer(message.session)
            name, producer.latency_ms = producer.client, max(0.0, message.latency_ms)
        self._around.drift.on_offset(
            target,
            name,
            offset_ms=message.offset_ms,
            uncertain_ms=message.uncertain_ms,
            now_ms=now_ms,
        )
        # A few at a time are told to move, and the next ones by what is so then: or all would.
        report = self._around.health.report(now_ms=now_ms)
        share = TELL_SHARE_UNWELL if report.of_all else TELL_SHARE
        tells = self._around.rng.random() < share
        signals = self.signals(carried, tell_better=tells)
        return frames.Reported(signals, now_ms, not self._around.health.drift_reason)

    def signals(self, carried: Carried, *, tell_better: bool = True) -> frames.Signals:
        """What clients need to react."""
        now_ms = self._around.now_ms()
        report = self._around.health.report(now_ms=now_ms)
        arrivals = carried.arrivals.per_second(now_ms=now_ms)
        done = carried.done.per_second(now_ms=now_ms)
        consumers = max(len(carried.consumers), len(carried.loader.windows.deal.members))
        backlog = carried.counts.due
        return frames.Signals(
            backlog,
            arrivals,
            done,
            list(carried.windows_ahead),
            consumers,
            suggested(backlog=backlog, arrivals=arrivals, done=done, consumers=consumers),
            report.condition.value,
            [text for _, text in report.reasons],
            self._around.better(carried.record.name) if tell_better else "",
        )

    # Messages

    async def insert(self, message: frames.Insert) -> frames.Answer:
        carried = self._of(message.session)
        producer = carried.producer(message.session)
        now_ms = self._around.dated_ms()
        gate = self._around.health.producer(producer.client)
        gate.check(f"producer {producer.client!r}", now_ms)
        producer.rate.take(len(message.messages), now_ms=now_ms)
        good = False
        try:
            outcomes = await self._insert(carried, message, now_ms)
            good = 2 * sum(item.status is Status.OK for item in outcomes) >= len(outcomes)
        finally:
            gate.on_outcome(good=good, now_ms=now_ms)
        return frames.InsertedAll(outcomes)

    async def _insert(
        self, carried: Carried, message: frames.Insert, now_ms: int
    ) -> list[Inserted]:
        config = carried.record.config
        last_ms = now_ms + config.ahead_ms_max
        refused: dict[int, Status] = {}
        taken: list[NewMessage] = []
        first_ms = last_ms
        size = 0
        for at, new in enumerate(message.messages):
            length = len(new.body) + len(new.headers)
            if length > config.body_bytes_max:
                refused[at] = Status.TOO_LARGE
            elif new.due_ms > last_ms:
                refused[at] = Status.TOO_FAR
            else:
                if new.due_ms < now_ms:
                    new = NewMessage(now_ms, new.body, new.headers, new.key, new.priority)
                taken.append(new)
                size += length
                first_ms = min(first_ms, new.due_ms)
        buckets = self._around.rng.choices(range(config.buckets), k=len(taken))
        stored = await carried.use(
            "insert",
            lambda store: store.insert(taken, buckets=buckets, now_ms=now_ms, batch=message.batch),
        )
        if len(stored) != len(taken):
            raise InvalidInput(
                f"batch {message.batch} was sent before with other messages; count on"
            )
        name, metrics = carried.record.name, self._around.metrics
        good = sum(item.status is Status.OK for item in stored)
        metrics.messages(name, "create", good=good, bad=len(message.messages) - good)
        metrics.moved(name, "in", "producer", size)
        metrics.moved(name, "out", "storage", size)
        carried.arrivals.add(good, now_ms=now_ms)
        if good:
            carried.stored(first_ms)
        return _merged(stored, refused)

    async def consume(self, message: frames.Consume) -> frames.Answer:
        carried = self._of(message.session)
        found = await carried.consume(message.session, limit=message.limit, wait_ms=message.wait_ms)
        return frames.Pushed(found)

    async def extend(self, message: frames.Extend) -> frames.Answer:
        carried = self._of(message.session)
        carried.consumer(message.session)
        # The time in an extension is the consumer's. While our own is off, nothing is known of it.
        latest_ms = self._around.now_ms() + carried.record.config.lease_ms_max
        trusted = not self._around.health.drift_reason
        for item in message.extensions:
            if trusted and item.until_ms > latest_ms:
                raise InvalidInput(
                    f"an extension to {item.until_ms} is longer than the "
                    f"{carried.record.config.lease_ms_max} ms that this timeline allows"
                )
        statuses = await carried.use("extend", lambda store: store.extend(message.extensions))
        good = statuses.count(Status.OK)
        name = carried.record.name
        self._around.metrics.leases(name, "extend", good=good, bad=len(statuses) - good)
        if message.extensions:
            carried.stored(min(item.until_ms for item in message.extensions))
        return frames.Statuses(statuses)

    async def release(self, message: frames.ReleaseAll) -> frames.Answer:
        carried = self._of(message.session)
        carried.consumer(message.session)
        now_ms = self._around.now_ms()
        statuses = await carried.use(
            "release",
            lambda store: store.release(
                message.releases,
                now_ms=now_ms,
                attempts_max=carried.record.config.attempts_max,
            ),
        )
        dead = statuses.count(Status.DEAD)
        good = statuses.count(Status.OK)
        name, metrics = carried.record.name, self._around.metrics
        metrics.messages(name, "released", good=good, bad=len(statuses) - good - dead)
        metrics.messages(name, "dead", good=dead)
        if message.releases:
            carried.stored(min(item.due_ms for item in message.releases))
        return frames.Statuses(statuses)

    async def delete(self, message: frames.Delete) -> frames.Answer:
        carried = self._of(message.session)
        carried.consumer(message.session)
        statuses = await carried.use("delete", lambda store: store.delete(message.handles))
        good = statuses.count(Status.OK)
        name = carried.record.name
        self._around.metrics.messages(name, "delete", good=good, bad=len(statuses) - good)
        carried.done.add(good, now_ms=self._around.now_ms())
        return frames.Statuses(statuses)

    async def held(self, message: frames.Held) -> frames.Answer:
        carried = self._of(message.session)
        consumer = carried.consumer(message.session)
        now_ms = self._around.now_ms()
        leases = await carried.use(
            "held",
            lambda store: store.held_by(consumer.member.id, now_ms=now_ms, limit=message.limit),
        )
        # What is leased for it and waits here for its time will be pushed.
        waiting = {push.message.handle for push in consumer.outbox}
        return frames.Pushed([leased for leased in leases if leased.handle not in waiting])

    # Looking

    async def describe(self, message: frames.Describe) -> frames.Answer:
        carried = self._carried(message.timeline)
        await carried.count()
        deal = carried.loader.windows.deal
        consumers = []
        for consumer in carried.consumers.values():
            share = deal.share(consumer.member.id)
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
            carried.record.name,
            carried.record.config,
            carried.counts,
            self.signals(carried),
            consumers,
            carried.lateness.percentile(50),
            carried.lateness.percentile(99),
        )

    async def look_up(self, message: frames.LookUp) -> frames.Answer:
        carried = self._carried(message.timeline)
        now_ms = self._around.now_ms()
        by_id = await carried.use("look", lambda s: s.look_up(message.ids, now_ms=now_ms))
        by_key = await carried.use("look", lambda s: s.look_up_keys(message.keys, now_ms=now_ms))
        return frames.Found([*by_id, *by_key])

    async def peek(self, message: frames.Peek) -> frames.Answer:
        carried = self._carried(message.timeline)
        now_ms = self._around.now_ms()
        found = await carried.use("peek", lambda s: s.peek(now_ms=now_ms, limit=message.limit))
        return frames.Found(list(found))

    async def cancel(self, message: frames.Cancel) -> frames.Answer:
        carried = self._carried(message.timeline)
        now_ms = self._around.now_ms()
        statuses = await carried.use("cancel", lambda s: s.cancel(message.ids, now_ms=now_ms))
        good = statuses.count(Status.OK)
        name = carried.record.name
        self._around.metrics.messages(name, "cancel", good=good, bad=len(statuses) - good)
        return frames.Statuses(statuses)

    async def move(self, message: frames.Move) -> frames.Answer:
        carried = self._carried(message.timeline)
        now_ms = self._around.dated_ms()
        last_ms = now_ms + carried.record.config.ahead_ms_max
        moves = [(MessageId(i), max(now_ms, due_ms)) for i, due_ms in message.moves]
        if any(due_ms > last_ms for _, due_ms in moves):
            raise InvalidInput(
                f"a due time beyond the {carried.record.config.ahead_ms_max} ms that this "
                "timeline looks ahead"
            )
        statuses = await carried.use("move", lambda s: s.move(moves, now_ms=now_ms))
        if moves:
            carried.stored(min(due_ms for _, due_ms in moves))
        return frames.Statuses(statuses)

    # Dead letters

    async def dead(self, message: frames.Dead) -> frames.Answer:
        carried = self._carried(message.timeline)
        found = await carried.use(
            "dead", lambda s: s.dead(after=MessageId(message.after), limit=message.limit)
        )
        return frames.Found(list(found))

    async def replay(self, message: frames.Replay) -> frames.Answer:
        carried = self._carried(message.timeline)
        now_ms = self._around.dated_ms()
        statuses = await carried.use("replay", lambda s: s.replay(message.ids, due_ms=now_ms))
        carried.stored(now_ms)
        return frames.Statuses(statuses)

    async def drop_dead(self, message: frames.DropDead) -> frames.Answer:
        carried = self._carried(message.timeline)
        statuses = await carried.use("drop", lambda s: s.drop_dead(message.ids))
        good, name = statuses.count(Status.OK), carried.record.name
        self._around.metrics.messages(name, "dropped", good=good, bad=len(statuses) - good)
        return frames.Statuses(statuses)

    # Schedules

    async def put_schedule(self, message: frames.PutSchedule) -> frames.Answer:
        carried = self._carried(message.timeline)
        now_ms = self._around.dated_ms()
        if len(message.body) > carried.record.config.body_bytes_max:
            raise InvalidInput(
                f"a body of {len(message.body)} bytes; this timeline takes "
                f"{carried.record.config.body_bytes_max}"
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
        await carried.use("schedule", lambda s: s.put_schedule(schedule))
        await carried.fire_schedules()
        return frames.Done()

    async def drop_schedule(self, message: frames.DropSchedule) -> frames.Answer:
        carried = self._carried(message.timeline)
        if not await carried.use("schedule", lambda s: s.drop_schedule(message.name)):
            raise NotFound(f"timeline {message.timeline!r} has no schedule {message.name!r}")
        return frames.Done()

    async def schedules(self, message: frames.Schedules) -> frames.Answer:
        carried = self._carried(message.timeline)
        found = await carried.use("schedule", lambda s: s.schedules())
        states = [
            frames.ScheduleState(s.name, s.next_ms, s.cron, s.zone, s.every_ms) for s in found
        ]
        return frames.ScheduleList(states)


def _merged(stored: Sequence[Inserted], refused: Mapping[int, Status]) -> list[Inserted]:
    if not refused:
        return list(stored)
    left = iter(stored)
    count = len(stored) + len(refused)
    return [
        Inserted(refused[at], MessageId(0)) if at in refused else next(left) for at in range(count)
    ]


_HANDLERS: Final[Mapping[type[frames.Request], _Handler]] = {
    frames.Open: Requests.open,
    frames.Close: Requests.close,
    frames.Pause: Requests.pause,
    frames.Report: Requests.report,
    frames.Insert: Requests.insert,
    frames.Consume: Requests.consume,
    frames.Extend: Requests.extend,
    frames.ReleaseAll: Requests.release,
    frames.Delete: Requests.delete,
    frames.Held: Requests.held,
    frames.Describe: Requests.describe,
    frames.LookUp: Requests.look_up,
    frames.Peek: Requests.peek,
    frames.Cancel: Requests.cancel,
    frames.Move: Requests.move,
    frames.Dead: Requests.dead,
    frames.Replay: Requests.replay,
    frames.DropDead: Requests.drop_dead,
    frames.PutSchedule: Requests.put_schedule,
    frames.DropSchedule: Requests.drop_schedule,
    frames.Schedules: Requests.schedules,
}
