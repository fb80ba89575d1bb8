"""The next deadline of each group: one heap for all groups of a coordinator.

Of a group's alarms only the earliest counts; outdated ones are skipped when they ring.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping

from dovetail.log.groups.entries import GroupEntry
from dovetail.log.groups.types import GroupId

#: The shortest sleep. A deadline that differs from now by a rounding error would otherwise keep the
#: timer spinning.
_SLEEP_MS_MIN = 1.0


class Alarms:
    """The deadlines of all groups."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, GroupId]] = []
        self._earlier = asyncio.Event()

    def set(self, group_id: GroupId, entry: GroupEntry) -> None:
        """Rings when the group next has something to do."""
        wake_ms = entry.group.next_deadline_ms
        if wake_ms is not None and (entry.wake_ms is None or wake_ms < entry.wake_ms):
            entry.wake_ms = wake_ms
            heapq.heappush(self._heap, (wake_ms, group_id))
            self._earlier.set()

    def due(
        self, entries: Mapping[GroupId, GroupEntry], now_ms: float
    ) -> list[tuple[GroupId, GroupEntry]]:
        """The groups whose time has come."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            wake_ms, group_id = heapq.heappop(self._heap)
            entry = entries.get(group_id)
            if entry is not None and entry.wake_ms == wake_ms:
                entry.wake_ms = None
                found.append((group_id, entry))
        return found

    async def wait(self, until_ms: float, now_ms: Callable[[], float]) -> None:
        """Returns when an alarm rings, or at `until_ms`, or when an earlier one is set."""
        self._earlier.clear()
        if self._heap:
            until_ms = min(until_ms, self._heap[0][0])
        delay_ms = max(until_ms - now_ms(), _SLEEP_MS_MIN)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._earlier.wait()
        except TimeoutError:
            return
