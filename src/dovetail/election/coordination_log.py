"""A shared log in a coordination service: one key a record, and one key for the head.

An append writes the next key and the head in one transaction, on condition that the head is
unchanged since this member had folded everything up to it. So a record that would not count is
refused before it is stored, not merely ignored afterwards.

Survives: what the coordination service survives. A watch that fell behind reads the range again.
"""

import asyncio

from dovetail.background import keep_task
from dovetail.clock import Clock
from dovetail.coordination import ABSENT, Coordinator, Delete, KeyValue, Put, Revision, Unchanged
from dovetail.election.fold import Record, decode_record, encode_record
from dovetail.election.shared_log import FollowedLog, OnEntry, Signing, fenced
from dovetail.errors import CoordinationDown, DovetailError, Unavailable, WatchGap
from dovetail.logging import get_logger

#: Attempts of one append while others append too; each loses only to one that succeeded.
ATTEMPTS_MAX = 50
#: Keys that are deleted in one transaction.
DELETES_MAX = 100
#: Pause before a watch that ended is opened again.
WATCH_PAUSE_S = 0.2

_log = get_logger("election")


class CoordinationSharedLog(FollowedLog):
    """The log of one environment below `/streams/<topic>/<environment>/`."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        name: str,
        environment: str,
        timeout_ms: int,
        clock: Clock | None = None,
        signing: Signing | None = None,
    ) -> None:
        super().__init__(clock, signing)
        self._environment = environment
        self._coordinator = coordinator
        root = f"/streams/{name}/{environment}/"
        self._prefix, self._head = f"{root}log/", f"{root}head"
        self._timeout_s = timeout_ms / 1000
        #: What was read last; the watch begins behind it.
        self._read = Revision(0)
        self._task: asyncio.Task[None] | None = None

    async def open(self, on_entry: OnEntry) -> None:
        self._read = await self._read_range()
        self._follower.follow(on_entry)
        self._task = keep_task(self._watch, name="election/shared-log", of=self._prefix)

    async def append(self, record: Record) -> None:
        for _ in range(ATTEMPTS_MAX):
            head = await self._coordinator.get(self._head)
            index = 0 if head is None else int(head.value) + 1
            if index:
                await self._follower.verdict(index - 1, timeout_s=self._timeout_s)
            if not self.state.would_count(record):
                raise fenced(record, self.state)
            if await self._store(index, record, head):
                await self._follower.verdict(index, timeout_s=self._timeout_s)
                return
        raise Unavailable(
            f"cannot append to the shared log {self._prefix}: other members were faster "
            f"{ATTEMPTS_MAX} times in a row"
        )

    async def trim(self) -> None:
        base = self._follower.index_next - 1
        await self.append(self.state.snapshot(base=base))
        while self._first <= base:
            last = min(base, self._first + DELETES_MAX - 1)
            gone = [Delete(self._key(index)) for index in range(self._first, last + 1)]
            await self._coordinator.transact(gone)
            self._first = last + 1

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _key(self, index: int) -> str:
        return f"{self._prefix}{index:016d}"

    async def _store(self, index: int, record: Record, head: KeyValue | None) -> bool:
        """Stores the record if no other member was faster."""
        payload = encode_record(record)
        line = str(self._clock.wall_ms()).encode()
        if self._signer is not None:
            line += b" " + self._signer.sign(self._environment, payload)
        value = line + b"\n" + payload
        outcome = await self._coordinator.transact(
            [Put(self._key(index), value), Put(self._head, str(index).encode())],
            conditions=[Unchanged(self._head, ABSENT if head is None else head.revision)],
        )
        return outcome.applied

    async def _read_range(self) -> Revision:
        snapshot = await self._coordinator.range(self._prefix)
        if snapshot.items:
            self._first = self._index(snapshot.items[0].key)
        for item in snapshot.items:
            self._take(item.key, item.value)
        return snapshot.revision

    async def _watch(self) -> None:
        """Follows for ever; a gap or an absence is bridged by reading the range again."""
        while True:
            try:
                async with self._coordinator.watch(self._prefix, after=self._read) as changes:
                    async for events in changes:
                        for event in sorted(events, key=lambda event: event.key):
                            if event.value is not None:
                                self._take(event.key, event.value)
            except (WatchGap, CoordinationDown) as error:
                _log.warning("reading the shared log again", reason=str(error))
            await asyncio.sleep(WATCH_PAUSE_S)
            try:
                self._read = await self._read_range()
            except DovetailError as error:
                _log.warning("cannot read the shared log", reason=str(error))

    def _take(self, key: str, value: bytes) -> None:
        head, _, payload = value.partition(b"\n")
        wall, _, signature = head.partition(b" ")
        wall_ms = int(wall) if wall.isdigit() else self._clock.wall_ms()
        record, mark = decode_record(payload), None
        if self._signer is not None:
            mark = self._signer.mark_of(self._environment, payload, signature)
        if self._required and mark is None:
            _log.warning("ignoring a record that no member has signed", key=key)
            record = None
        self._follower.take(self._index(key), record, wall_ms, mark)

    def _index(self, key: str) -> int:
        return int(key.removeprefix(self._prefix))
