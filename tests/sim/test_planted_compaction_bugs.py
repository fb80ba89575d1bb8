"""The simulation of compaction can fail: each planted bug makes it red within a few seeds."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.sim import compaction_world
from tests.sim.compaction_world import run

from dovetail.errors import DovetailError
from dovetail.log import reading
from dovetail.log.compaction import compactor, plan
from dovetail.log.compaction.cleaning import AbortedTransactions, Cleaning
from dovetail.log.compaction.compactor import Compactor
from dovetail.log.partition import Partition
from dovetail.log.producers import AbortedRange, ProducerTable
from dovetail.storage import chain, pages
from dovetail.storage.chain import LedgerInfo

SEEDS_MAX = 40

Plant = Callable[[pytest.MonkeyPatch], None]


def nobody_names_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep takes a ledger for nobody's that compaction is writing."""
    original = chain.unfolded

    def unfolded(record: Any, found: Any) -> Any:
        whole = original(record, found)
        named = record.rewriting and record.rewriting.ledger
        kept = tuple(info for info in whole.ledgers if info.ledger != named)
        return chain.msgspec.structs.replace(whole, ledgers=kept)

    monkeypatch.setattr(pages.chain, "unfolded", unfolded)


def swapped_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain names a ledger whose entries are still on their way."""
    original = compactor._Output.room

    async def room(self: Any, bytes_max: int) -> None:
        if bytes_max:
            await original(self, bytes_max)

    monkeypatch.setattr(compactor._Output, "room", room)


def sources_deleted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be replaced is deleted before the chain has changed."""
    original = Compactor._replace

    async def replace(self: Any, partition: Partition, sources: Any, *more: Any, **m: Any) -> None:
        keeper, swap = partition.chain, partition.chain.swap

        async def hasty(*given: Any) -> bool:
            await partition.context.ensembles.let_go([source.placement for source in sources])
            return await swap(*given)

        monkeypatch.setattr(keeper, "swap", hasty)
        await original(self, partition, sources, *more, **m)

    monkeypatch.setattr(Compactor, "_replace", replace)


def what_was_written_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger whose swap had no answer is deleted, though it is in the chain."""
    original = compactor._abandon

    async def abandon(partition: Partition, info: LedgerInfo) -> None:
        await original(partition, info)
        await partition.context.ensembles.let_go([info.placement])

    monkeypatch.setattr(compactor, "_abandon", abandon)


def newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone can go before what it deletes."""
    original = plan.groups

    def groups(*given: Any, **named: Any) -> Iterator[Sequence[LedgerInfo]]:
        return reversed(list(original(*given, **named)))

    monkeypatch.setattr(plan, "groups", groups)


def beyond_what_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of an open transaction take others with them."""
    original = plan.survey
    monkeypatch.setattr(
        plan, "survey", lambda *given, **named: original(*given, **named | {"last_stable": 1 << 60})
    )


def aborted_records_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted record takes a committed one with it."""
    original = compactor.note_keys
    monkeypatch.setattr(
        compactor,
        "note_keys",
        lambda keys, batch, _, first: original(keys, batch, AbortedTransactions(()), first=first),
    )


def aborted_records_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay, and nobody is told any more that they were aborted."""
    monkeypatch.setattr(AbortedTransactions, "has", lambda *_: False)


def readers_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose ledger was replaced takes it for lost."""

    async def once(_: Any, read: Callable[[], Awaitable[Any]]) -> Any:
        return await read()

    monkeypatch.setattr(reading, "_on_one_chain", once)


def two_chains_in_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the old ledgers, and the aborted transactions of the new ones."""

    async def read(
        partition: Partition, offset: int, bytes_max: int, *, end: int
    ) -> tuple[Any, list[AbortedRange]]:
        found = await reading.read_from_storage(partition, offset, bytes_max, end=end)
        behind = reading.read_header(found[-1]).offset_end if found else offset
        return found, await reading.aborted_between(partition, offset, behind)

    monkeypatch.setattr(compaction_world, "read_committed", read)


def producers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner does not know who sent what, nor which transactions are open."""

    async def nobody(*_: Any, **__: Any) -> ProducerTable:
        return ProducerTable()

    monkeypatch.setattr(compactor, "producers_behind", nobody)


def tombstones_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that are on their way never hear that something was deleted."""
    monkeypatch.setattr(Cleaning, "_tombstones_stay", lambda *_: False)


def tombstones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take nothing with them when they go."""
    original = compactor._note_all

    def note(keys: Any, entries: Any, aborted: Any, first: int) -> Any:
        return original(Blind(keys), entries, aborted, first)

    class Blind:
        def __init__(self, keys: Any) -> None:
            self._keys = keys

        def put(self, data: Any, *where: Any) -> Any:
            return -1 if b"\x01\x00" in bytes(data)[-2:] else self._keys.put(data, *where)

    monkeypatch.setattr(compactor, "_note_all", note)


def a_full_map_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What found no room counts as compacted."""
    original = compactor.note_keys

    def note(*given: Any, **named: Any) -> None:
        original(*given, **named)

    monkeypatch.setattr(compactor, "note_keys", note)


def nothing_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger has no batch that reaches its end; readers find nothing there."""
    original = compactor._Output.finish

    def finish(self: Any, *given: Any, **named: Any) -> None:
        self._gone = None
        original(self, *given, **named)

    monkeypatch.setattr(compactor._Output, "finish", finish)


#: A bug, and the seed to begin with: near one that finds it, to save time.
PLANTS: list[tuple[Plant, int]] = [
    (nobody_names_what_is_written, 0),
    (swapped_before_it_is_stored, 0),
    (sources_deleted_first, 0),
    (what_was_written_goes, 0),
    (newest_first, 0),
    (beyond_what_is_stable, 0),
    (aborted_records_count, 0),
    (aborted_records_stay, 0),
    (readers_give_up, 0),
    (two_chains_in_one_answer, 0),
    (producers_are_forgotten, 0),
    (tombstones_go_at_once, 0),
    (tombstones_are_forgotten, 0),
    (a_full_map_is_not_noticed, 0),
    (nothing_at_the_end, 0),
]


@pytest.mark.parametrize(("plant", "first"), PLANTS)
def test_a_planted_bug_of_compaction_is_found(
    plant: Plant, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L17: the simulation goes red."""
    monkeypatch.setattr(compactor, "_KEYS_MIN", 4)
    plant(monkeypatch)
    for seed in range(first, first + SEEDS_MAX):
        try:
            run(seed)
        except (AssertionError, DovetailError) as error:
            print(f"{plant.__name__} was found by seed {seed}: {error!r}"[:300])
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
