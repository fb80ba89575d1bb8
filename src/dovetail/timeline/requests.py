"""Answers the requests of producers and consumers: from a checked message to an answer
(`dispatch.py` has the table, `operating.py` the requests of operators).

Clients' times are accepted as they are: a due time in the past means now.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dovetail.errors import InvalidInput, NotFound
from dovetail.timeline import frames
from dovetail.timeline.context import Context
from dovetail.timeline.engine.assignment import Member
from dovetail.timeline.engine.drift import Target
from dovetail.timeline.message import (
    TIME_MS_MAX,
    BatchId,
    Extension,
    Handle,
    Inserted,
    Life,
    NewMessage,
    Release,
    Status,
    bucket_of,
)
from dovetail.timeline.operating import Operating, Timelines
from dovetail.timeline.running import RunningTimeline
from dovetail.wire.calls import Answer, Request

_SESSION_MAX: Final = 2**63 - 1
#: The part of all reports whose answer names a better broker, if there is one.
MOVE_SHARE: Final = 0.2
#: The same where this broker serves nobody well.
MOVE_SHARE_UNWELL: Final = 0.5


class Requests(Operating):
    """The requests that are served here."""

    def __init__(
        self, context: Context, running: Mapping[str, RunningTimeline], timelines: Timelines
    ) -> None:
        super().__init__(context, running, timelines)
        self._sessions: dict[int, RunningTimeline] = {}
        self._rng = random.SystemRandom()

    def timeline_of(self, message: Request) -> str:
        """The timeline that a request is about, for metrics; empty if it is not served here."""
        name = getattr(message, "timeline", "")
        running = self._sessions.get(getattr(message, "session", 0))
        if running is not None:
            return running.record.name
        return name if name in self._timelines else ""

    def forget(self, running: RunningTimeline) -> None:
        """Its sessions are over."""
        for session in [number for number, held in self._sessions.items() if held is running]:
            del self._sessions[session]

    def prune(self) -> None:
        """Forgets sessions that ended by themselves, and gates of producers that are gone."""
        for session, running in list(self._sessions.items()):
            if session not in running.consumers and session not in running.producers:
                del self._sessions[session]
        there = {
            producer.client
            for running in self._timelines.values()
            for producer in running.producers.values()
        }
        self._context.health.keep_producers(there)

    def _of(self, session: int) -> RunningTimeline:
        found = self._sessions.get(session)
        if found is None:
            raise NotFound(f"session {session} is not open here; open one")
        return found

    # Sessions

    async def open(self, message: frames.Open) -> Answer:
        running = self.running(message.timeline)
        session = self._rng.randrange(1, _SESSION_MAX)
        if message.lease_ms:
            member = Member(message.client, message.rack)
            running.open_consumer(
                session, member, lease_ms=message.lease_ms, instance=message.instance
            )
        else:
            running.open_producer(session, message.client)
        self._sessions[session] = running
        return frames.Opened(session, running.record.config)

    async def close(self, message: frames.Close) -> Answer:
        running = self._sessions.pop(message.session, None)
        if running is not None:
            running.close_session(message.session)
        return frames.Done()

    async def pause(self, message: frames.Pause) -> Answer:
        running = self._of(message.session)
        running.consumer(message.session).end_waiting(TIME_MS_MAX)
        running.wake()
        return frames.Done()

    async def report(self, message: frames.Report) -> Answer:
        running = self._of(message.session)

        now_ms = self._context.now_ms()
        target, name = Target.PRODUCER, ""
        if message.session in running.consumers:
            consumer = running.consumer(message.session)
            target, name = Target.CONSUMER, consumer.member.id
            consumer.latency_ms = max(0.0, message.latency_ms)
            consumer.leased = max(0, consumer.leased - message.handled - message.failed)
            running.loader.on_latency(name, message.latency_ms)
            running.loader.on_free(name, message.free)
            consumer.busy = message.busy
            if message.handled or message.failed:
                gate = self._context.health.consumers(running.record.name)
                gate.on_outcome(good=message.handled >= message.failed, now_ms=now_ms)
        else:
            producer = running.producer(message.session)
            name, producer.latency_ms = producer.client, max(0.0, message.latency_ms)

        self._context.drift.on_offset(
            target,
            name,
            offset_ms=message.offset_ms,
            uncertain_ms=message.uncertain_ms,
            now_ms=now_ms,
        )

        # A few at a time are asked to move, and the next ones by what is so then: or all would.
        report = self._context.health.report(now_ms=now_ms)
        share = MOVE_SHARE_UNWELL if report.concerns(running.record.name) else MOVE_SHARE
        asked = self._context.rng.random() < share
        is_consumer = target is Target.CONSUMER
        better = self._context.better(running.record.name, is_consumer) if asked else ""
        signals = self.signals(running, better=better)
        return frames.Reported(signals, now_ms, not self._context.health.drift_reason)

    # Messages

    async def insert(self, message: frames.Insert) -> Answer:
        running = self._of(message.session)
        running.check_open()
        producer = running.producer(message.session)
        now_ms = self._context.dated_ms()
        gate = self._context.health.producer(producer.client)
        gate.check(f"producer {producer.client!r}", now_ms)
        producer.rate.take(len(message.messages), now_ms=now_ms)
        good = False
        try:
            outcomes = await self.store(running, message.messages, message.batch)
            # A key that is taken is an answer, and what `schedule` is repeated for.
            stored = sum(item.status in (Status.OK, Status.EXISTS) for item in outcomes)
            good = 2 * stored >= len(outcomes)
        finally:
            gate.on_outcome(good=good, now_ms=now_ms)
        return frames.InsertedAll(outcomes)

    async def store(
        self, running: RunningTimeline, messages: Sequence[NewMessage], batch: BatchId | None
    ) -> list[Inserted]:
        """Stores messages that the timeline takes, under a name once; for each its outcome."""
        now_ms, config = self._context.dated_ms(), running.record.config
        last_ms = now_ms + config.ahead_ms_max

        refused: dict[int, Status] = {}
        taken: list[NewMessage] = []
        first_ms = last_ms
        size = 0
        for at, new in enumerate(messages):
            length = len(new.body) + len(new.headers)
            if length > config.body_bytes_max:
                refused[at] = Status.TOO_LARGE
            elif new.due_ms > last_ms:
                refused[at] = Status.TOO_FAR
            else:
                if new.due_ms < now_ms:
                    new = replace(new, due_ms=now_ms)
                if config.ttl_ms and (new.life is None or not new.life.ttl_ms):
                    new = replace(new, life=replace(new.life or Life(), ttl_ms=config.ttl_ms))
                taken.append(new)
                size += length
                first_ms = min(first_ms, new.due_ms)

        buckets = self._context.rng.choices(range(config.buckets), k=len(taken))
        for at, new in enumerate(taken):
            if new.order_key is not None:
                buckets[at] = bucket_of(new.order_key, config.buckets)
        stored = await running.use(
            "insert",
            lambda store: store.insert(
                taken, buckets=buckets, now_ms=now_ms, batch=batch, refused=refused
            ),
        )
        if len(stored) != len(messages):
            raise InvalidInput(f"batch {batch} was sent before with other messages; count on")

        name, metrics = running.record.name, self._context.metrics
        good = sum(item.status is Status.OK for item in stored)
        metrics.messages(name, "create", good=good, bad=len(refused))
        metrics.moved(name, "in", "producer", size)
        metrics.moved(name, "out", "storage", size)
        running.arrivals.add(good, now_ms=now_ms)
        if good:
            running.stored(first_ms)
        return stored

    async def consume(self, message: frames.Consume) -> Answer:
        running = self._of(message.session)
        found = await running.consume(message.session, limit=message.limit, wait_ms=message.wait_ms)
        return frames.Pushed(found)

    async def extend(self, message: frames.Extend) -> Answer:
        running = self._of(message.session)
        running.consumer(message.session)
        return frames.Statuses(await self.extend_leases(running, message.extensions))

    async def release(self, message: frames.ReleaseAll) -> Answer:
        running = self._of(message.session)
        running.consumer(message.session)
        return frames.Statuses(await self.release_leases(running, message.releases))

    async def delete(self, message: frames.Delete) -> Answer:
        running = self._of(message.session)
        running.consumer(message.session)
        return frames.Statuses(await self.delete_leases(running, message.handles))

    # Leases, whoever shows them: the version decides

    async def extend_leases(
        self, running: RunningTimeline, extensions: Sequence[Extension]
    ) -> list[Status]:
        """Moves the ends of leases. Raises `InvalidInput` if one would be too long."""
        # The time in an extension is the consumer's. While our own is off, nothing is known of it.
        latest_ms = self._context.now_ms() + running.record.config.lease_ms_max
        trusted = not self._context.health.drift_reason
        for item in extensions:
            if trusted and item.until_ms > latest_ms:
                raise InvalidInput(
                    f"an extension to {item.until_ms} is longer than the "
                    f"{running.record.config.lease_ms_max} ms that this timeline allows"
                )

        statuses = await running.use("extend", lambda store: store.extend(extensions))
        good = statuses.count(Status.OK)
        name = running.record.name
        self._context.metrics.leases(name, "extend", good=good, bad=len(statuses) - good)
        if extensions:
            running.stored(min(item.until_ms for item in extensions))
        return statuses

    async def release_leases(
        self, running: RunningTimeline, given: Sequence[Release]
    ) -> list[Status]:
        """Gives messages back; `DEAD` for what had its last attempt."""
        now_ms = self._context.now_ms()
        releases = [_storable(item) for item in given]
        statuses = await running.use(
            "release",
            lambda store: store.release(
                releases,
                now_ms=now_ms,
                attempts_max=running.record.config.attempts_max,
            ),
        )

        dead = statuses.count(Status.DEAD)
        good = statuses.count(Status.OK)
        name, metrics = running.record.name, self._context.metrics
        metrics.messages(name, "released", good=good, bad=len(statuses) - good - dead)
        metrics.messages(name, "dead", good=dead)

        if releases:
            running.stored(min(item.due_ms for item in releases))
        return statuses

    async def delete_leases(
        self, running: RunningTimeline, handles: Sequence[Handle]
    ) -> list[Status]:
        """Removes messages that are done."""
        now_ms = self._context.now_ms()
        statuses = await running.use("delete", lambda store: store.delete(handles, now_ms=now_ms))
        running.done.add(statuses.count(Status.OK), now_ms=now_ms)
        return self._counted_statuses(running, "delete", statuses).statuses

    async def held(self, message: frames.Held) -> Answer:
        running = self._of(message.session)
        consumer = running.consumer(message.session)

        # What is leased for it and waits here for its time will be pushed.
        await running.leased()
        waiting = (push.message.handle for push in consumer.outbox)
        known = {*message.known, *waiting}
        name, now_ms, limit = consumer.member.id, self._context.now_ms(), message.limit
        leases = await running.use(
            "held", lambda s: s.take_up(name, known=known, now_ms=now_ms, limit=limit)
        )
        return frames.Pushed(leases)


def _storable(release: Release) -> Release:
    """Without NUL in its reason, which PostgreSQL cannot store: a release must not fail for it."""
    if "\0" not in release.reason:
        return release
    return replace(release, reason=release.reason.replace("\0", "\N{REPLACEMENT CHARACTER}"))
