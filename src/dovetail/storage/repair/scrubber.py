"""A storage node slowly reads everything it holds, again and again, to find damage.

A byte that the disk has changed is noticed only when it is read, and old records may not be read
for months: long enough for the other copies to go bad too. So each storage node reads its own
entries at a low rate, ledger by ledger. The store notes an entry that fails its checksum as lost,
as after any other read. The node then reports damage, the owners copy the entry anew
(`repairer.py`), and afterwards the damaged segment is dropped (`wholeness.py`). On a single node
the damage is only reported.

Every ten seconds it also checks whether a segment file was removed, at any rate and also if it does
not read at all. The process still has the file open, so its live entries move to another segment at
once (`disk/compaction.py`). If the node ends before that, the next start finds the index without
its segment, which is damage.

The scrubber reads through the system's page cache: a change on the disk is seen only after the
system has dropped the page, which for old data is soon.

Not here: which bytes are bad (`disk/index.py`), and segments without live ledgers.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from dovetail.clock import Clock
from dovetail.errors import Damaged, DovetailError, NotFound
from dovetail.logging import get_logger
from dovetail.storage.disk.commands import ScrubReport
from dovetail.storage.held import Held
from dovetail.storage.identifiers import Entry, EntryId, LedgerId
from dovetail.storage.repair.rate import ByteRate

_log = get_logger("storage")

#: Bytes that are read at once. A reader of clients waits behind one of these at most.
STEP_BYTES = 256 * 1024

#: What an entry counts beside its bytes: reading one of 100 bytes costs about as much as 1 KiB.
_ENTRY_BYTES = 1024

#: What a ledger counts beside its entries: finding out what is held of it costs the event loop as
#: much as reading some. Ten thousand small ledgers are read through in a minute, at the default.
_LEDGER_BYTES = 16 * 1024

#: Pause between two passes, and after an error that passes; so often it looks for the files.
PAUSE_S = 10.0

_LAST = EntryId(2**62)


class Scrubbed(Protocol):
    """A storage node, as it sees itself (`LocalStorageNode`)."""

    scrub: ScrubReport

    def note_damage(self, what: str) -> None: ...
    async def look_for_files(self) -> tuple[str, ...]: ...
    async def ledgers(self) -> set[LedgerId]: ...
    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held: ...
    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]: ...


class Scrubber:
    """Reads one storage node through."""

    def __init__(
        self,
        node: Scrubbed,
        *,
        bytes_per_second: int,
        clock: Clock,
        on_damage: Callable[[], None],
    ) -> None:
        """`on_damage` is called each time something is found. With a rate of 0 nothing is read."""
        self._node = node
        self._rate = ByteRate(bytes_per_second) if bytes_per_second else None
        self._clock = clock
        self._on_damage = on_damage
        self._looked_ms: float | None = None
        self._gone: frozenset[str] = frozenset()

    async def run(self) -> None:
        """For ever; cancel it to end."""
        while True:
            try:
                await self.once()
            except DovetailError as error:
                _log.warning("cannot read every entry; trying again", error=str(error))
            await asyncio.sleep(PAUSE_S)

    async def once(self) -> None:
        """One pass over what is held. Raises `Unavailable` if the disk cannot be read now."""
        await self._look_for_files()
        if self._rate is None:
            return
        for ledger in sorted(await self._node.ledgers()):
            try:
                await self._read_through(ledger, self._rate)
            except NotFound:
                pass  # It was deleted meanwhile.
            await self._rest(self._rate.take(_LEDGER_BYTES, now_ms=self._now()) / 1000)
        self._node.scrub.passes += 1

    async def _look_for_files(self) -> None:
        now_ms = self._now()
        if self._looked_ms is not None and now_ms - self._looked_ms < PAUSE_S * 1000:
            return
        self._looked_ms = now_ms
        gone = frozenset(await self._node.look_for_files())
        for name in sorted(gone - self._gone):
            _log.error("a segment file was removed; moving its live entries", file=name)
            self._node.scrub.damaged += 1
        self._gone = gone

    async def _read_through(self, ledger: LedgerId, rate: ByteRate) -> None:
        first = EntryId(0)
        while True:
            held = await self._node.held(ledger, first=first, last=_LAST)
            if not held.spans:
                return
            span = held.spans[0]
            try:
                entries = await self._node.read(
                    ledger, EntryId(span.first), last=EntryId(span.last), bytes_max=STEP_BYTES
                )
            except Damaged as error:
                # What does not check is not held any more: the next look goes on behind it.
                if (await self._node.held(ledger, first=first, last=_LAST)) == held:
                    raise
                _log.error("the disk has changed what was stored", ledger=ledger, error=str(error))
                self._node.note_damage(str(error))
                self._on_damage()
                continue

            size = sum(len(entry.payload) for entry in entries)
            self._node.scrub.bytes_read += size
            first = EntryId(entries[-1].entry + 1)
            wait_ms = rate.take(size + _ENTRY_BYTES * len(entries), now_ms=self._now())
            await self._rest(wait_ms / 1000)

    async def _rest(self, wait_s: float) -> None:
        """At a low rate it lasts for minutes; files are looked for meanwhile."""
        while wait_s > PAUSE_S:
            await asyncio.sleep(PAUSE_S)
            await self._look_for_files()
            wait_s -= PAUSE_S
        await asyncio.sleep(wait_s)
        await self._look_for_files()

    def _now(self) -> float:
        return self._clock.monotonic_ms()
