"""The first batches of transactions: who asks the coordinator, and in which order they are kept."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from dovetail.errors import (
    DovetailError,
    NotOwner,
    SequenceGap,
    TransactionBusy,
    TransactionMapping,
    Unavailable,
)
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.producers import ProducerTable
from dovetail.log.transactions import verification
from dovetail.log.transactions.calls import Admit
from dovetail.log.transactions.types import Place
from dovetail.log.transactions.verification import Verification
from dovetail.record_batch import TRANSACTIONAL, BatchHeader, NewRecord, build_batch, read_header

PLACE = Place("t", 0)


class Stored:
    """The part of a partition that is asked: its producers, and what it appended."""

    def __init__(self) -> None:
        self.producers = ProducerTable()
        self.sequences: list[int] = []

    def append(self, batch: memoryview, header: BatchHeader) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            known = self.producers.duplicate_of(header, now_ms=0)
        except DovetailError as error:
            future.set_exception(error)
            return future
        if known is None:
            known = len(self.sequences)
            self.producers.note(header._replace(base_offset=known), now_ms=0)
            self.sequences.append(header.base_sequence)
        future.set_result(Appended(known, -1))
        return future


class Asked:
    """A coordinator that answers when it is told to; None: the transaction goes on."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[DovetailError | None] = asyncio.Queue()
        self.answer: Callable[[DovetailError | None], None] = self._answers.put_nowait

    async def __call__(self, _request: Admit) -> int:
        error = await self._answers.get()
        if error is not None:
            raise error
        return 1


class Scene:
    """A producer of a transaction writes single records to one partition."""

    def __init__(self, *, adds: bool) -> None:
        self.asked, self.stored = Asked(), Stored()
        self._adds = adds
        self._gate = Verification(self.asked)

    def send(self, sequence: int) -> asyncio.Future[Appended]:
        batch = build_batch(
            [NewRecord(0, None, b"x")],
            producer_id=7,
            producer_epoch=0,
            sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        return self._gate.append(
            cast(Partition, self.stored),
            PLACE,
            memoryview(batch),
            read_header(batch),
            transactional_id="x",
            adds=self._adds,
        )


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("error", [TransactionBusy("busy"), NotOwner("it moved")])
async def test_what_follows_a_refused_first_batch_does_not_begin_in_its_place(
    adds: bool, error: DovetailError
) -> None:
    """K4, K8: several batches are on their way; the first is told to come again while the last
    transaction is being ended, or the coordinator moves. The second would else become the first,
    and the first, when it comes again, a gap that ends the transaction."""
    scene = Scene(adds=adds)
    first = scene.send(0)
    scene.asked.answer(error)
    with pytest.raises(DovetailError) as refused:
        await first
    assert refused.value.retriable

    second = scene.send(1)
    scene.asked.answer(None)
    with pytest.raises(Unavailable, match="has to come again before 1"):
        await second
    again = [scene.send(sequence) for sequence in (0, 1)]
    assert [done.base_offset for done in await asyncio.gather(*again)] == [0, 1]
    assert scene.stored.sequences == [0, 1]


async def test_who_begins_anew_elsewhere_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K8: a producer that gave the refused batch up goes on behind it, after a while; one whose
    refusal is final can be another's next."""
    scene = Scene(adds=False)
    first = scene.send(0)
    scene.asked.answer(TransactionMapping("somebody else's"))
    with pytest.raises(TransactionMapping):
        await first
    assert not scene.stored.sequences

    monkeypatch.setattr(verification, "BEGIN_AGAIN_S", 0.0)
    first = scene.send(0)
    scene.asked.answer(TransactionBusy("busy"))
    with pytest.raises(DovetailError):
        await first
    second = scene.send(1)
    scene.asked.answer(None)
    assert (await second).base_offset == 0


async def test_a_transaction_of_kip_890_begins_at_its_first_sequence_number() -> None:
    """K4, K8: each has an epoch of its own, so what comes first is number 0; what came before it
    may have been refused by another broker."""
    scene = Scene(adds=True)
    ahead = scene.send(2)
    scene.asked.answer(None)
    with pytest.raises(SequenceGap):
        await ahead
    first = scene.send(0)
    scene.asked.answer(None)
    assert (await first).base_offset == 0
