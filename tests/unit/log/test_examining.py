"""Batches are examined before they are appended, and none overtakes another."""

import asyncio
import random
import threading
from functools import partial

import pytest
from tests.unit.log.conftest import Bench, read_all

from dovetail.errors import InvalidBatch, NotOwner
from dovetail.log import examining
from dovetail.log.open_ledger import Appended
from dovetail.record_batch import NewRecord, build_batch, check_batch, recompressed


def batch_of(number: int, codec: int) -> memoryview:
    raw = memoryview(bytearray(build_batch([NewRecord(1, None, b"%d" % number)])))
    return recompressed(raw, check_batch(raw, bytes_max=1 << 20), codec, None)[0]


async def test_compressed_and_plain_batches_keep_their_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13, K2: a plain batch waits for the compressed one before it; another partition does not."""
    partition = await bench.topic()
    other = await bench.topic("other")
    held, original = threading.Event(), examining._examine

    def slow(*args: object) -> object:
        held.wait()
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(examining, "_examine", slow)
    rng = random.Random(1)
    examiner, sent = bench.log.examiner, []
    for number in range(40):
        batch = batch_of(number, 4 if number == 0 else rng.choice([0, 4]))
        header = check_batch(batch, bytes_max=1 << 20)
        sent.append(examiner.append(partition, batch, header, admit=None, store=partition.append))
    plain = batch_of(99, 0)
    header = check_batch(plain, bytes_max=1 << 20)
    await examiner.append(other, plain, header, admit=None, store=other.append)
    assert not any(future.done() for future in sent)
    held.set()
    appended = await asyncio.gather(*sent)
    assert [one.base_offset for one in appended] == list(range(40))
    assert [r.value for r in await read_all(partition)] == [b"%d" % n for n in range(40)]
    assert not examiner._pending


async def test_a_large_plain_batch_is_examined_beside_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13: a hundred megabytes of the smallest records take a tenth of a second."""
    partition = await bench.topic()
    monkeypatch.setattr(examining, "AT_ONCE_BYTES", 10)
    batch = batch_of(1, 0)
    header = check_batch(batch, bytes_max=1 << 20)
    future = bench.log.examiner.append(partition, batch, header, admit=None, store=partition.append)
    assert partition in bench.log.examiner._pending
    assert (await future).base_offset == 0


async def test_what_is_refused_leaves_the_others_alone(bench: Bench) -> None:
    """F13: garbage between two sound batches; a store that refuses at once is heard too."""
    partition = await bench.topic()
    good, bad = batch_of(1, 4), batch_of(2, 4)
    bad[61:] = bytes(len(bad) - 61)
    header = check_batch(good, bytes_max=1 << 20)

    def refuse(*_: object) -> "asyncio.Future[Appended]":
        raise NotOwner("gone")

    futures = [
        bench.log.examiner.append(partition, batch, header, admit=None, store=store)
        for batch, store in ((good, partition.append), (bad, partition.append), (good, refuse))
    ]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(outcomes[0], Appended)
    assert isinstance(outcomes[1], InvalidBatch)
    assert isinstance(outcomes[2], NotOwner)
    assert partition.high_watermark == 1


async def test_a_codec_that_fails_as_nobody_expected_refuses_its_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13, R5: the client hears of it, the next batch is taken; also while the log closes."""
    partition = await bench.topic()

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    batch = batch_of(1, 4)
    header = check_batch(batch, bytes_max=1 << 20)
    send = partial(
        bench.log.examiner.append, partition, batch, header, admit=None, store=partition.append
    )
    with monkeypatch.context() as patched:
        patched.setattr(examining, "_examine", broken)
        with pytest.raises(InvalidBatch, match="MemoryError"):
            await send()
    assert (await send()).base_offset == 0
    late = send()
    await bench.restart()
    assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], Appended | NotOwner)
