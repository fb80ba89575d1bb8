"""F69: what a recovery costs is a few calls, however many entries were on their way."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from dovetail.storage import (
    Ensembles,
    Entry,
    EntryId,
    LedgerId,
    LedgerState,
    LedgerStore,
    LocalStorageNode,
    Quorum,
    RealDisk,
    StoreSettings,
    Term,
)
from dovetail.storage.disk.commands import Append

_LEDGER = LedgerId(1)
_THREE = Quorum(3, 3, 2)


class _Counted(LocalStorageNode):
    """A storage node that counts what it is asked."""

    calls: Counter[str]

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        self.calls["fence"] += 1
        return await super().fence(ledger, term)

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        self.calls["read"] += 1
        return await super().read(ledger, first, last=last, bytes_max=bytes_max)


class _Three:
    """Three of them, always chosen."""

    def __init__(self, folder: Path, calls: Counter[str]) -> None:
        settings = StoreSettings(disk_free_bytes_min=1)
        self.nodes: dict[int, _Counted] = {}
        for number in (1, 2, 3):
            store = LedgerStore(RealDisk(folder / str(number)), settings, random.Random(number))
            self.nodes[number] = _Counted(store)
            self.nodes[number].calls = calls

    def node(self, number: int) -> LocalStorageNode:
        return self.nodes[number]

    def choose(self, count: int, *, without: Sequence[int], **_: object) -> tuple[int, ...]:
        return (1, 2, 3)

    def near(self, number: int) -> bool:
        return True

    def away(self) -> tuple[int, ...]:
        return ()


async def _store(node: LocalStorageNode, entries: range) -> None:
    answers = [asyncio.get_running_loop().create_future() for _ in entries]
    for entry, answer in zip(entries, answers, strict=True):
        command = Append(_LEDGER, EntryId(entry), Term(1), EntryId(-1), b"entry %d" % entry)
        node.append(command, answer.set_result)
    assert await asyncio.gather(*answers) == [None] * len(entries)


@pytest.mark.parametrize("on_their_way", [20, 2000])
async def test_calls_do_not_follow_the_entries_on_their_way(
    tmp_path: Path, on_their_way: int
) -> None:
    """F69: two thousand are recovered by as many calls as twenty."""
    calls: Counter[str] = Counter()
    nodes = _Three(tmp_path, calls)
    ensembles = Ensembles(nodes)
    placement = ensembles.place(_LEDGER, _THREE)
    # As a crash leaves it: two nodes have all of them, one the first half.
    await _store(nodes.node(1), range(on_their_way))
    await _store(nodes.node(2), range(on_their_way // 2))
    await _store(nodes.node(3), range(on_their_way))

    _, entry_last = await ensembles.recover(placement, Term(2))
    assert entry_last == on_their_way - 1
    assert sum(calls.values()) < 60
    for node in nodes.nodes.values():
        await node.close()
