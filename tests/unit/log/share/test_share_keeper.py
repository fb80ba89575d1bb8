"""One share-partition at its owner: dead letters, and what nobody uses."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.unit.log.conftest import Bench

from dovetail.clock import SystemClock
from dovetail.errors import InvalidBatch, NotFound, Unavailable
from dovetail.log.partition import Partition
from dovetail.log.share import dead_letters, keeper, registry
from dovetail.log.share.calls import BuryShare, LookShare
from dovetail.log.share.keeper import Keeper
from dovetail.log.share.registry import AnswersHere, ShareRegistry
from dovetail.log.share.types import (
    Acknowledge,
    Acknowledgement,
    Acquired,
    Batch,
    Place,
    ShareSettings,
    ShareState,
)
from dovetail.record_batch import encode_batch, read_header

RECORDS = 250
PLACE = Place("g", "t", 0)


class Store:
    """Keeps what it is given."""

    async def claim(self, place: Place, topic_id: str, term: int) -> ShareState:
        return ShareState(topic_id, term, 1, start=0)

    async def write(self, place: Place, state: ShareState) -> None:
        """It is stored."""


class NoGroup(Store):
    """There is no such group."""

    async def claim(self, place: Place, topic_id: str, term: int) -> ShareState:
        raise NotFound("there is no share group 'g'")


async def partition_of(bench: Bench) -> Partition:
    partition = await bench.topic()
    batch = memoryview(encode_batch([(None, b"x")] * RECORDS, timestamp=1))
    await partition.append(batch, read_header(batch))
    return partition


async def test_dead_letters_go_in_pieces_to_the_topic_that_is_named_now(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10, R8: not all records that were given up are in memory at once, and letters that find no
    place go where the group's settings say by now, though no member asks for anything."""
    monkeypatch.setattr(keeper, "_BURY_AGAIN_MS", 1)
    settings = ShareSettings(dead_letters="dlq.gone")
    buried: list[tuple[str, Acquired]] = []
    done = asyncio.Event()

    async def bury(_: Keeper, dying: Acquired, now: ShareSettings) -> None:
        nonlocal settings
        if now.dead_letters == "dlq.gone":
            settings = ShareSettings(dead_letters="dlq.new")
            raise Unavailable("there is no such topic")
        buried.append((now.dead_letters, dying))
        if dying.last == RECORDS - 1:
            done.set()

    partition = await partition_of(bench)
    clock = SystemClock()
    share = Keeper(PLACE, partition, "id", Store(), bury, clock, lambda _: settings)
    machine = await share.ready()
    share.acquire("a", machine, 0, [Batch(0, RECORDS - 1)], records_max=1, strict=False)
    await share.acknowledge("a", [Acknowledgement(0, RECORDS - 1, (Acknowledge.REJECT,))])
    await asyncio.wait_for(done.wait(), 30)
    assert buried == [
        ("dlq.new", Acquired(0, 99, 1)),
        ("dlq.new", Acquired(100, 199, 1)),
        ("dlq.new", Acquired(200, 249, 1)),
    ]
    share.close(Unavailable("the test ends"))


async def test_letters_are_made_beside_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10, R7: a batch of a million records is opened for one of them."""
    threads = []

    def noting(batch: Any) -> Iterator[Any]:
        threads.append(threading.current_thread())
        return decode(batch)

    decode = dead_letters.decode_batch
    monkeypatch.setattr(dead_letters, "decode_batch", noting)
    made = await dead_letters.letters(
        PLACE, await partition_of(bench), Acquired(7, 8, 1), ShareSettings(), now_ms=1
    )
    assert len(made) == 2
    assert threads
    assert threading.main_thread() not in threads


async def test_shares_of_groups_that_do_not_exist_are_forgotten(bench: Bench) -> None:
    """K10, R8: whoever asks for records of ever more groups leaves nothing behind."""
    partition = await partition_of(bench)
    shares = ShareRegistry.__new__(ShareRegistry)
    shares._keepers, shares._counts = {}, {}
    for number, store in enumerate((NoGroup(), Store())):
        place = Place(f"g{number}", "t", 0)
        shares._keepers[place] = Keeper(
            place, partition, "id", store, None, SystemClock(), lambda _: ShareSettings()
        )  # type: ignore[arg-type]
    gone, there = shares.keepers()
    with pytest.raises(NotFound):
        await gone.ready()
    await there.ready()
    shares.trim()
    assert [*shares.keepers()] == [there]


async def test_counts_outlive_a_share_that_nobody_uses(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10, R8: a member that restarts goes on counting; so many are kept, and those of a partition
    that went elsewhere go."""
    monkeypatch.setattr(registry, "_COUNTED_MAX", 2)
    partition = await partition_of(bench)
    shares = ShareRegistry.__new__(ShareRegistry)
    shares._keepers, shares._counts = {}, {}

    def use(number: int) -> None:
        place = Place(f"g{number}", "t", 0)
        known = shares._counts.pop(place, None)
        keeper = Keeper(
            place,
            partition,
            "id",
            Store(),
            cast(Any, None),
            SystemClock(),
            lambda _: ShareSettings(),
            known,
        )
        shares._keepers[place] = keeper
        keeper.counts.accepted += 1
        shares.let_go(keeper)

    for number in (0, 1, 0, 2):
        use(number)
    found = {place.group_id: counts.accepted for place, counts in shares.counted()}
    assert found == {"g0": 2, "g2": 1}
    looked = await AnswersHere(shares, bench.log, cast(Any, None)).look(
        LookShare("g0", [("t", 0), ("t", 1)])
    )
    assert looked.counts == [(0, 2, 0, 0, 0, 0, 0), ()]
    shares._on_gone("t", 0)
    assert [*shares.counted()] == []


async def test_letters_without_a_key_are_not_put_where_they_would_go(bench: Bench) -> None:
    """K10, L17: a compacted topic takes letters with keys alone; the others wait."""
    answers = AnswersHere(cast(Any, None), bench.log, cast(Any, None))
    partition = await bench.topic("dlq.t", cleanup_policy="compact")
    with pytest.raises(InvalidBatch, match="key"):
        await answers.bury(BuryShare("dlq.t", 0, bytes(encode_batch([(None, b"x")], timestamp=1))))
    await answers.bury(BuryShare("dlq.t", 0, bytes(encode_batch([(b"k", b"x")], timestamp=1))))
    assert partition.high_watermark == 1
