"""Clients of the simulated brokers: idempotent producers, readers, and somebody who administers.

A client's request runs in the process that it was sent to: never if that one is dead, later if it
is paused, by which time the client has long asked another. Producers send to whoever has the
partition open, also to one whose lease has ended or whose successor is at work: as a request does
that passed every check a moment before.
"""

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from crc32c import crc32c
from tests.sim.brokers import CLOCK, Life
from tests.sim.processes import of_nobody, settle
from tests.sim.storage_hosts import spawn

from dovetail.buffers import Buffer
from dovetail.errors import Damaged, DovetailError, NotOwner, ProducerFenced, TopicUnknown
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage, read_from_tail
from dovetail.record_batch import check_batch, decode_batch, encode_batch, read_header

IN_FLIGHT_MAX = 5
ANSWER_WAIT_S = 2.5


class NoAnswer(Exception):
    """The process died, stands still, or is slow."""


async def ask(life: Life, work: Callable[[], Awaitable[Any]], *, wait_s: float) -> Any:
    """Runs `work` in a process. Raises what it raises, or `NoAnswer`."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        try:
            outcome = await work()
        except DovetailError as error:
            outcome = error
        reply(answer, outcome)

    life.process.call(lambda: life.run(serve()))
    try:
        async with asyncio.timeout(wait_s):
            outcome = await answer
    except TimeoutError:
        raise NoAnswer from None
    if isinstance(outcome, DovetailError):
        raise outcome
    return outcome


def reply(answer: "asyncio.Future[Any]", outcome: object) -> None:
    """Answers a client, out of the process."""
    asyncio.get_running_loop().call_soon(settle, answer, outcome, context=of_nobody())


class Stream:
    """One partition of one topic as its clients know it: what was sent, and what was stored.

    It has one producer, so the record with sequence n belongs at offset n: one that is lost, stored
    twice or out of order shows in every offset behind it.
    """

    def __init__(
        self, topic_id: str, name: str, number: int, *, producer_id: int, rng: random.Random
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.number = number
        self.deleted = False
        self.acknowledged = 0
        self.checked = 0
        self._producer_id = producer_id
        self._rng = rng
        self._batches: list[list[bytes]] = []
        self._starts = [0]
        self.values: list[bytes] = []

    def __str__(self) -> str:
        return f"{self.name}-{self.number} ({self.topic_id[:6]})"

    @property
    def records_acknowledged(self) -> int:
        return self._starts[self.acknowledged]

    def open_at(self, life: Life) -> Partition | None:
        """The partition where this broker has it open."""
        if life.log is None:
            return None
        found = life.log.owned.open.get((self.name, self.number))
        return found if found is not None and found.record.topic_id == self.topic_id else None

    def key_of(self, value: bytes) -> bytes | None:
        """The key under which a value is stored."""
        return None

    def _batch(self, at: int) -> memoryview:
        while len(self._batches) <= at:
            start = self._starts[-1]
            count, size = self._rng.randint(1, 3), self._rng.choice([5, 60, 400])
            values = [
                f"{self}/{start + n}/".encode() + self._rng.randbytes(size) for n in range(count)
            ]
            self._batches.append(values)
            self._starts.append(start + count)
            self.values += values
        pairs = [(self.key_of(value), value) for value in self._batches[at]]
        batch = encode_batch(pairs, timestamp=CLOCK.wall_ms())
        struct.pack_into(">qhi", batch, 43, self._producer_id, 0, self._starts[at])
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        return memoryview(batch)

    def _send(self, life: Life, at: int, *, checks_lease: bool) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        raw = self._batch(at)

        def serve() -> None:
            try:
                partition = self.open_at(life)
                if checks_lease and life.log is not None:
                    life.log.partition(self.name, self.number)
                if partition is None:
                    raise NotOwner("not here any more")
                stored = partition.append(raw, check_batch(raw, bytes_max=100_000))
            except DovetailError as error:
                reply(answer, error)
            else:
                stored.add_done_callback(lambda f: reply(answer, f.exception() or f.result()))

        life.process.call(serve)
        return answer

    async def produce(self, life: Life, goal: int) -> None:
        """Sends up to five at a time, until one fails or `goal` are acknowledged."""
        sent: list[asyncio.Future[Any]] = []
        at = self.acknowledged
        checks_lease = self._rng.random() < 0.6
        failed = False
        while not failed and (at < goal or sent):
            # The first goes alone: of a producer that it does not know, a partition takes any
            # sequence, as Kafka does, also a second batch whose first was refused.
            while at < goal and len(sent) < (IN_FLIGHT_MAX if self.acknowledged else 1):
                sent.append(self._send(life, at, checks_lease=checks_lease))
                at += 1
            failed = not await self._acknowledge(sent.pop(0))
        for later in sent:
            if failed:
                await asyncio.wait([later], timeout=ANSWER_WAIT_S)
            else:
                failed = not await self._acknowledge(later)
        if failed:
            await asyncio.sleep(self._rng.random() * 0.3)

    async def _acknowledge(self, answer: "asyncio.Future[Any]") -> bool:
        await asyncio.wait([answer], timeout=ANSWER_WAIT_S)
        if not answer.done():
            return False
        outcome = answer.result()
        assert not isinstance(outcome, ProducerFenced)
        if isinstance(outcome, DovetailError):
            return False
        assert isinstance(outcome, Appended)
        expected = self._starts[self.acknowledged]
        assert outcome.base_offset == expected, (
            f"{self}: record {expected} was stored at {outcome.base_offset}"
        )
        self.acknowledged += 1
        return True

    async def ask_end(self, life: Life) -> None:
        """Asks a broker where the partition ends; it may refuse, and must not tell an old end.

        Not behind what was acknowledged before it was asked, that is: by anybody, to anybody.
        """

        async def work() -> int:
            if life.log is None:
                raise NotOwner("not here any more")
            partition = life.log.partition(self.name, self.number)
            if partition.record.topic_id != self.topic_id:
                raise TopicUnknown("another topic of this name")
            return partition.high_watermark

        least = self.records_acknowledged
        end = await ask(life, work, wait_s=ANSWER_WAIT_S)
        assert end >= least or self.deleted, (
            f"{self}: {life.author} says that it ends at {end}, and {least} were acknowledged"
        )

    async def read(self, life: Life, *, offset: int, everything: bool) -> int:
        """Reads from `offset` on and checks; returns the offset behind what was read."""

        async def work() -> list[Buffer]:
            partition = self.open_at(life)
            if partition is None:
                raise TopicUnknown("not here any more")
            if offset >= partition.high_watermark:
                return []
            found = None if everything else read_from_tail(partition, offset, 2_000)
            return found or await read_from_storage(partition, offset, 2_000)

        try:
            found = await ask(life, work, wait_s=ANSWER_WAIT_S)
        except Damaged:
            if self.deleted:
                return offset
            raise
        for batch in found:
            assert read_header(batch).base_offset <= offset, f"{self}: a gap before {offset}"
            for record in decode_batch(batch):
                if record.offset >= offset:
                    assert record.offset == offset, f"{self}: offsets jump at {offset}"
                    assert offset < len(self.values), f"{self}: {offset} was never sent"
                    assert record.value == self.values[offset], (
                        f"{self}: {offset} is {record.value!r}"[:120]
                    )
                    offset += 1
        return offset


async def keep_producing(
    stream: Stream, lives: Callable[[], list[Life]], rng: random.Random, pause_s: float
) -> None:
    """A producer until its topic goes: sends to any broker that has the partition open.

    It goes on sending while the topic is deleted, as long as somebody takes it.
    """
    while True:
        there = [life for life in lives() if stream.open_at(life) is not None]
        if stream.deleted and not there:
            return
        if there:
            await stream.produce(rng.choice(there), stream.acknowledged + rng.randint(1, 6))
        await asyncio.sleep(rng.random() * pause_s)


async def keep_asking(
    streams: Callable[[], list[Stream]], lives: Callable[[], list[Life]], rng: random.Random
) -> None:
    """A reader that wants to know of everybody where partitions end."""
    while True:
        await asyncio.sleep(rng.random() * 0.1)
        there = [(s, life) for s in streams() for life in lives() if s.open_at(life) is not None]
        if there:
            stream, life = rng.choice(there)
            with contextlib.suppress(DovetailError, NoAnswer):
                await stream.ask_end(life)


async def keep_reading(
    streams: Callable[[], list[Stream]], lives: Callable[[], list[Life]], rng: random.Random
) -> None:
    """A reader that jumps between brokers, partitions and offsets."""
    while True:
        await asyncio.sleep(rng.random() * 0.3)
        pairs = [
            (stream, life)
            for stream in streams()
            for life in lives()
            if stream.open_at(life) is not None
        ]
        if pairs:
            stream, life = rng.choice(pairs)
            partition = stream.open_at(life)
            assert partition is not None
            offset = rng.randint(0, max(0, partition.high_watermark - 1))
            try:
                await stream.read(life, offset=offset, everything=rng.random() < 0.5)
            except (DovetailError, NoAnswer) as error:
                assert stream.deleted or not isinstance(error, Damaged), f"{stream}: {error}"


def start(work: Awaitable[None]) -> None:
    """A client at work."""
    spawn(work)  # type: ignore[arg-type]
