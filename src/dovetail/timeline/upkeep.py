"""Periodic work for one timeline: counts messages, fires schedules, trims dead letters.

The service calls it. Pushing a message in time needs none of this except the firing of schedules,
which happens ahead of time.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dovetail.logging import get_logger
from dovetail.timeline.context import Context
from dovetail.timeline.engine.schedule import firing_at
from dovetail.timeline.message import NUMBER_MAX, Counts
from dovetail.timeline.stores.protocol import Seen

if TYPE_CHECKING:
    from dovetail.timeline.running import RunningTimeline

_log = get_logger("timeline")

#: Schedules are fired so long ahead: more than the pause between two looks at them.
FIRE_AHEAD_MS: Final = 2_000
#: Windows whose load is reported ahead.
WINDOWS_AHEAD: Final = 4
#: Counting may take one part of so many of the time.
COUNT_SHARE: Final = 500


class Upkeep:
    """See the module."""

    def __init__(self, running: "RunningTimeline", context: Context, *, followed: bool) -> None:
        """`followed`: others change the timeline too, and are heard and seen."""
        self._running = running
        self._context = context
        self._followed = followed
        #: Whether something has changed since messages were counted, and since they were trimmed.
        self.changed = self.untrimmed = True
        #: Whether there may be dead letters that have to go elsewhere.
        self.unforwarded = True
        #: The last look of all timelines; None while there was none.
        self.seen: Seen | None = None
        self.counts = Counts(0, 0, 0, 0)
        self.windows_ahead: list[int] = []
        self._count_next_ms = 0.0

    def on_change(self) -> None:
        """Messages came, went or moved, here or at another broker."""
        self.changed = self.untrimmed = self.unforwarded = True

    async def count(self) -> None:
        """Counts messages by state, and those of the next windows."""
        running, now_ms = self._running, self._context.now_ms()
        self.changed = False
        self.counts = await running.use("count", lambda store: store.counts(now_ms=now_ms))
        width_ms = running.record.config.window_ms
        first_ms = running.loader.windows.window_of(now_ms) * width_ms
        edges = [first_ms + at * width_ms for at in range(WINDOWS_AHEAD + 1)]
        self.windows_ahead = await running.use("count", lambda store: store.histogram(edges))

    async def refresh(self) -> None:
        """Counts again, unless counting is dear: then as much more seldom."""
        began_ms = self._context.clock.monotonic_ms()
        running, metrics = self._running, self._context.metrics
        name, consumers = running.record.name, running.consumers.values()
        metrics.channels(name, consumers=len(consumers), producers=len(running.producers))
        metrics.latency(name, "consumer", [each.latency_ms for each in consumers])
        metrics.latency(name, "producer", [each.latency_ms for each in running.producers.values()])

        busy = sum(consumer.busy for consumer in consumers)
        stop = running.record.config.when_busy == "stop"
        self._context.health.on_busy(name, most=2 * busy > len(consumers), stop=stop)

        if began_ms < self._count_next_ms or self._is_quiet():
            return
        try:
            await self.count()
        except BaseException:
            self.changed = True
            raise
        took_ms = self._context.clock.monotonic_ms() - began_ms
        self._count_next_ms = began_ms + took_ms * COUNT_SHARE

        counts = self.counts
        states = {
            "waiting": counts.waiting,
            "due": counts.due,
            "leased": counts.leased,
            "dead": counts.dead,
        }
        metrics.state(name, states, self.windows_ahead)

    def _is_quiet(self) -> bool:
        """Whether nothing has changed since the last count, and nothing does with time."""
        if self.changed or not self._followed or self.seen is None:
            return False
        first_ms = self.seen.first_ms
        width_ms = self._running.record.config.window_ms
        near_ms = self._context.now_ms() + (WINDOWS_AHEAD + 1) * width_ms
        return first_ms is None or first_ms > near_ms

    async def fire_due(self) -> None:
        """As `fire_schedules`, unless a look found that none is near."""
        if self.seen is not None:
            next_ms = self.seen.schedule_ms
            if next_ms is None or next_ms >= self._context.now_ms() + FIRE_AHEAD_MS:
                return
        await self.fire_schedules()

    async def fire_schedules(self) -> None:
        """Makes the messages of schedules whose time is near, ahead of it."""
        running, now_ms = self._running, self._context.now_ms()
        near_ms = now_ms + FIRE_AHEAD_MS
        near = await running.use("schedule", lambda store: store.schedules(before_ms=near_ms))
        for schedule in near:
            while schedule.next_ms < near_ms:
                bucket = self._context.rng.randrange(running.record.config.buckets)
                firing = firing_at(schedule, now_ms=now_ms, bucket=bucket)
                (fired,) = await running.use(
                    "schedule",
                    lambda store, one=firing: store.fire([one], now_ms=now_ms),  # type: ignore[misc]
                )
                if not fired:
                    break
                running.arrivals.add(1, now_ms=now_ms)
                self._context.metrics.messages(running.record.name, "create", good=1)
                running.stored(firing.message.due_ms)
                schedule = replace(schedule, next_ms=firing.following_ms)

    async def trim(self, *, batches_before_ms: int) -> None:
        """Removes dead letters above the limit, and names of old batches."""
        name, config = self._running.record.name, self._running.record.config
        # What waits to go elsewhere is not dropped.
        dead_max = NUMBER_MAX if config.dead_to else config.dead_max
        self.untrimmed = False
        trimmed = await self._running.use(
            "trim",
            lambda store: store.trim(dead_max=dead_max, batches_before_ms=batches_before_ms),
        )
        if trimmed.dead:
            self.changed = True
            self._context.metrics.messages(name, "dropped", good=trimmed.dead)
            _log.warning("oldest dead letters dropped", timeline=name, count=trimmed.dead)
