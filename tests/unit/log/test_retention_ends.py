"""Retention at the ends of its settings, with the clock, and after a restart there (R8)."""

import asyncio

import pytest
from tests.unit.log.conftest import Bench, read_all

LONG_MAX = 2**63 - 1

#: Setting, value, and which of four records are kept: three in closed ledgers, one in an open one.
ENDS = [
    ("retention.ms", -1, [0, 1, 2, 3]),
    ("retention.ms", 0, []),
    ("retention.ms", 1, []),
    ("retention.ms", 86_400_000, [0, 1, 2, 3]),
    ("retention.ms", LONG_MAX, [0, 1, 2, 3]),
    ("retention.bytes", -LONG_MAX - 1, [0, 1, 2, 3]),
    ("retention.bytes", -1, [0, 1, 2, 3]),
    ("retention.bytes", 0, [3]),
    ("retention.bytes", 1, [3]),
    ("retention.bytes", LONG_MAX, [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("name", "value", "kept"), ENDS)
async def test_retention_at_its_ends(bench: Bench, name: str, value: int, kept: list[int]) -> None:
    """R8, L11: 0 keeps what is being written, -1 and the largest keep everything, for good."""
    config = {"retention.ms": "-1", "retention.bytes": "-1", name: str(value)}
    await bench.log.create_topic("t", partitions=1, config=config)
    partition = bench.log.partition("t", 0)
    for number in range(4):
        await bench.send(partition, b"%d" % number)
        if number < 3:
            partition.roll()
            assert partition._rolling is not None
            await asyncio.wait([partition._rolling])

    for _ in range(2):
        bench.clock.advance(1000)
        for _ in range(2):  # What is open and too old is closed first.
            await bench.log.maintain()
            if partition._rolling is not None:
                await asyncio.wait([partition._rolling])
        assert [record.offset for record in await read_all(partition)] == kept
        await bench.restart(crash=True)
        partition = bench.log.partition("t", 0)
        if name == "retention.bytes" and value == 0:
            kept = []  # The takeover closed the ledger that was open.
    assert (await bench.send(partition, b"next")).base_offset == 4
