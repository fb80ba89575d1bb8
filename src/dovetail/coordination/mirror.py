"""A view of the keys below a prefix: read once, then watched, and read again after a gap.

Promise: `apply` gets every key's newest value, each key's revisions in rising order, and never one
older than what the caller noted itself. What it gets may be outdated: it is a hint, and code that
acts on it does so by compare-and-set.

Survives: an absent service (the mirror stays as it was), gaps and compaction.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from dovetail.background import keep_task
from dovetail.coordination.protocol import Coordinator, Revision, Snapshot
from dovetail.errors import DovetailError, WatchGap
from dovetail.logging import get_logger

_log = get_logger("coordination")

#: Pause before everything is read again after the service was away.
RETRY_MS = 200

#: Gets a key with its value, or None when it is gone.
Apply = Callable[[str, bytes | None, Revision], None]


V = TypeVar("V")


class NumberedMirror(Generic[V]):
    """What stands below a prefix under `<prefix><number>`, as last seen."""

    def __init__(
        self,
        coordinator: Coordinator,
        prefix: str,
        decode: Callable[[bytes], V],
        *,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._prefix = prefix
        self._decode = decode
        self._mirror = Mirror(coordinator, prefix, apply=self._apply, settled=settled)
        self.values: dict[int, V] = {}

    async def start(self) -> None:
        """Reads all, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._mirror.stop()

    def _apply(self, key: str, value: bytes | None, revision: Revision) -> None:
        number = int(key.removeprefix(self._prefix))
        if value is None:
            self.values.pop(number, None)
        else:
            self.values[number] = self._decode(value)


class Mirror:
    """Follows one prefix, from `start` to `stop`."""

    def __init__(
        self,
        coordinator: Coordinator,
        prefix: str,
        *,
        apply: Apply,
        settled: Callable[[], None],
    ) -> None:
        """`settled` is called after each set of changes that belong together."""
        self._coordinator = coordinator
        self._prefix = prefix
        self._apply = apply
        self._settled = settled
        self._revisions: dict[str, Revision] = {}
        #: All changes up to this revision were applied; what is noted of them comes late.
        self._applied = Revision(0)
        #: Keys that this caller removed, until the watch has shown it too.
        self._removed: dict[str, Revision] = {}
        #: What was read last; the watch begins behind it.
        self._read = Revision(0)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads everything, then follows. Raises `CoordinationDown`."""
        self._read = await self._read_all()
        self._task = keep_task(self._follow, name="coordination/mirror", of=self._prefix)

    async def stop(self) -> None:
        """Follows no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def note(self, key: str, value: bytes | None, revision: Revision) -> None:
        """The caller changed a key itself, and need not wait for the watch to say so."""
        if revision <= self._applied:
            return
        if value is None:
            self._removed[key] = revision
        self._take(key, value, revision)

    async def catch_up(self) -> None:
        """Brings everything to a state that is not older than this call; the watch may be behind.

        Raises `CoordinationDown`.
        """
        snapshot = await self._coordinator.range(self._prefix)
        there = {item.key for item in snapshot.items}
        for key in [key for key in self._revisions if key not in there]:
            self.note(key, None, snapshot.revision)
        for item in snapshot.items:
            self.note(item.key, item.value, item.revision)
        self._settled()

    async def _read_all(self) -> Revision:
        snapshot = await self._coordinator.range(self._prefix)
        self._adopt(snapshot)
        self._settled()
        return snapshot.revision

    def _adopt(self, snapshot: Snapshot) -> None:
        there = {item.key for item in snapshot.items}
        for key in [key for key in self._revisions if key not in there]:
            self._take(key, None, snapshot.revision)
        for item in snapshot.items:
            self._take(item.key, item.value, item.revision)
        self._applied_up_to(snapshot.revision)

    def _applied_up_to(self, revision: Revision) -> None:
        self._applied = max(self._applied, revision)
        self._removed = {key: at for key, at in self._removed.items() if at > revision}

    async def _follow(self) -> None:
        while True:
            try:
                async with self._coordinator.watch(self._prefix, after=self._read) as events:
                    async for changes in events:
                        for change in changes:
                            self._take(change.key, change.value, change.revision)
                        self._applied_up_to(changes[0].revision)
                        self._settled()
            except WatchGap:
                pass
            except DovetailError as error:
                _log.warning("watch ended; reading again", prefix=self._prefix, error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)

            try:
                self._read = await self._read_all()
            except DovetailError as error:
                _log.warning("cannot read; trying again", prefix=self._prefix, error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)

    def _take(self, key: str, value: bytes | None, revision: Revision) -> None:
        known = max(self._revisions.get(key, 0), self._removed.get(key, 0))
        if revision < known:
            return
        if value is not None:
            self._removed.pop(key, None)
            self._revisions[key] = revision
        elif self._revisions.pop(key, None) is None:
            return
        self._apply(key, value, revision)
