"""Brokers with groups and transactions, and clients that consume, transform and produce.

Each transactional id has an endless input. A client of the id asks where the id's group stands,
writes two records for that item to two partitions, and commits the next position with them, all in
one transaction; or it aborts, or dies in the middle. Several clients of one id live at a time: all
but the newest are zombies. Half of the clients name their partitions first and keep their epoch,
the others speak KIP-890's protocol.

What must be true: of each item below the position both records are there for a reader of what is
committed, exactly once; of each one above, none. So a transaction that is torn, lost, doubled or
committed by a zombie shows, whoever died when. What any reader of what is committed ever saw is
there in the end, at its offset. And nothing hangs: every partition becomes stable to its end.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from tests.sim.broker_clients import NoAnswer, ask, start
from tests.sim.brokers import CLOCK, Life
from tests.sim.wired_world import WiredWorld

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, NotOwner, Refused, Unavailable
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import (
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    MemberId,
    MemberIdentity,
    OffsetCommit,
    PartitionKey,
    TransactionOf,
)
from dovetail.log.partition import Partition
from dovetail.log.producers import AbortedRange
from dovetail.log.reading import aborted_between, read_from_storage
from dovetail.log.service import Log
from dovetail.log.transactions.brokers import Outcomes
from dovetail.log.transactions.calls import Admit
from dovetail.log.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dovetail.log.transactions.registry import TransactionRegistry
from dovetail.log.transactions.types import Identity, Place, TransactionError
from dovetail.record_batch import (
    TRANSACTIONAL,
    Marker,
    NewRecord,
    build_batch,
    check_batch,
    decode_batch,
    read_header,
)

TOPIC, PARTITIONS = "out", 3
IDS = ["x", "y"]
TIMEOUT_MS = 4_000
ANSWER_S = 2.5
NOBODY = MemberIdentity(MemberId(""))


class TransactionLife(Life):
    """A broker with groups and transactions."""

    world: "TransactionWorld"
    groups: GroupRegistry
    transactions: TransactionRegistry

    def made(self, log: Log) -> None:
        world = self.world
        self.groups = GroupRegistry(
            log, CLOCK, GroupSettings(), partitions=2, topics_of=lambda _kind, _data: None
        )
        self.transactions = TransactionRegistry(
            self.author.number,
            log,
            self.groups,
            WireBrokers(self.author.number, world),
            CLOCK,
            TransactionSettings(),
            partitions=2,
        )

    async def started(self) -> None:
        await self.groups.start()
        await self.transactions.start()


class WireBrokers:
    """The other brokers at the end of wires."""

    def __init__(self, number: int, world: "TransactionWorld") -> None:
        self._number = number
        self._world = world

    async def admit(self, node: int, request: Admit) -> int:
        number: int = await self._ask(node, lambda there: there.transactions.admit(request))
        return number

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        sent = tuple(places)
        outcomes: Outcomes = await self._ask(
            node, lambda there: there.transactions.end_here(marker, sent)
        )
        return outcomes

    async def _ask(self, node: int, work: Callable[[TransactionLife], Any]) -> Any:
        world = self._world
        found = await world.call(self._number, node, work)
        if world.rng.random() < 0.1 and not world.calm:
            await asyncio.sleep(world.rng.random())
        return found


class TransactionWorld(WiredWorld[TransactionLife]):
    """Everybody, and what is known of each item."""

    broker_class = TransactionLife
    topic, partitions = TOPIC, PARTITIONS

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: What readers of what is committed have seen, by partition and offset.
        self.seen: dict[tuple[int, int], bytes] = {}
        self.ended: Counter[str] = Counter()
        #: Clients that are at work.
        self.clients = 0

    def owner(
        self, number: int, *, surely: bool = False
    ) -> tuple[TransactionLife, Partition] | None:
        """Somebody who has the partition open, and may be wrong about that unless `surely`."""
        there = [
            (life, life.log.owned.open[TOPIC, number])
            for life in self.brokers()
            if life.log is not None and (TOPIC, number) in life.log.owned.open
            if not surely or (life is self.newest(life.author.number) and life.log.holds_lease())
        ]
        return self.rng.choice(there) if there else None

    def unsettled(self) -> str:
        """What keeps the cluster from being as it should be."""
        current = [self.newest(number) for number in self.numbers]
        lives = [life for life in current if life is not None and life.serves]
        if len(lives) < len(self.numbers):
            return "not all brokers run"
        for number in range(PARTITIONS):
            found = [
                life.log.owned.open[TOPIC, number]
                for life in lives
                if life.log is not None and (TOPIC, number) in life.log.owned.open
            ]
            if len(found) != 1:
                return f"{TOPIC}-{number} is open {len(found)} times"
            if found[0].last_stable != found[0].high_watermark:
                return (
                    f"{found[0].name} hangs at {found[0].last_stable} of {found[0].high_watermark}"
                )
        for name in IDS:
            if sum(life.transactions.of(name) is not None for life in self.brokers()) != 1:
                return f"{name} has no coordinator"
        return ""


class Reader:
    """Reads what is committed, as Kafka's consumers do: skips what is aborted itself."""

    def __init__(self, world: TransactionWorld) -> None:
        self._world = world

    async def read(
        self, number: int, offset: int, *, life: TransactionLife, partition: Partition
    ) -> tuple[int, dict[int, bytes]]:
        """Records from an offset on, by their offsets, and the offset behind them."""

        async def work() -> tuple[list[Buffer], list[AbortedRange]]:
            end = partition.last_stable
            if not partition.serving or offset >= end:
                return [], []
            batches = await read_from_storage(partition, offset, 3_000, end=end)
            behind = read_header(batches[-1]).offset_end
            return batches, await aborted_between(partition, offset, behind)

        batches, aborted = await ask(life, work, wait_s=ANSWER_S)
        found = {}
        for batch in batches:
            header = read_header(batch)
            skipped = any(
                one.producer_id == header.producer_id
                and one.first_offset <= header.base_offset < one.last_offset
                for one in aborted
            )
            for record in decode_batch(batch):
                if record.offset >= offset and not skipped:
                    found[record.offset] = record.value or b""
            offset = max(offset, header.offset_end)
        return offset, found

    async def run(self) -> None:
        """Jumps between partitions and offsets, and remembers everything."""
        world = self._world
        while not world.calm:
            await asyncio.sleep(world.rng.random() * 0.2)
            number = world.rng.randrange(PARTITIONS)
            there = world.owner(number)
            if there is None:
                continue
            at = world.rng.randint(0, max(0, there[1].high_watermark - 1))
            with contextlib.suppress(DovetailError, NoAnswer):
                _, found = await self.read(number, at, life=there[0], partition=there[1])
                for offset, value in found.items():
                    known = world.seen.setdefault((number, offset), value)
                    assert known == value, f"{number}/{offset} was {known!r} and is {value!r}"

    async def everything(self, number: int) -> dict[int, bytes]:
        """All that is committed in a partition, in the end."""
        offset, found = 0, {}
        deadline = asyncio.get_running_loop().time() + 20
        while True:
            there = self._world.owner(number, surely=True)
            if there is not None and there[1].serving and offset >= there[1].high_watermark:
                return found
            # Balance may move it even now.
            assert asyncio.get_running_loop().time() < deadline, f"{number} cannot be read"
            if there is None:
                await asyncio.sleep(0.1)
                continue
            with contextlib.suppress(DovetailError, NoAnswer):
                offset, more = await self.read(number, offset, life=there[0], partition=there[1])
                found.update(more)


class GaveUp(Exception):
    """A client has lost its patience, its epoch, or its life."""


class Client:
    """One process of an application with a transactional id."""

    def __init__(self, world: TransactionWorld, name: str, *, mortal: bool = True) -> None:
        self._world = world
        self._rng = world.rng
        self._name = name
        self._mortal = mortal
        self._group = GroupId(f"group-{name}")
        self._bumps = self._rng.random() < 0.5
        self._who = Identity(-1, -1)
        self._sequences: Counter[tuple[Identity, int]] = Counter()

    async def run(self, transactions: int) -> None:
        self._world.clients += 1
        try:
            await self._run(transactions)
        finally:
            self._world.clients -= 1

    async def _run(self, transactions: int) -> None:
        with contextlib.suppress(GaveUp):
            self._who = await self._coordinator(
                lambda there: there.begin(self._name, timeout_ms=TIMEOUT_MS, expected=None)
            )
            for _ in range(transactions):
                if self._world.resting:
                    return
                await self._transact()
                await asyncio.sleep(self._rng.random() * 0.1)

    async def _transact(self) -> None:
        places = [Place(TOPIC, n) for n in self._rng.sample(range(PARTITIONS), 2)]
        item = await self.position()
        journal = await self._journal()
        if not self._bumps:
            wanted = [*places, journal]
            await self._coordinator(lambda there: there.add(self._name, self._who, wanted))
        for at, place in enumerate(places):
            await self._write(place, f"{self._name}/{item}/{at}".encode())
        await self._commit_position(journal, item + 1)
        await asyncio.sleep(self._rng.choice([0, self._rng.random() * 0.4]))
        if self._rng.random() < 0.05:
            raise GaveUp("died before the end")
        commit = self._rng.random() < 0.8
        now = await self._coordinator(
            lambda there: there.end(self._name, self._who, commit=commit, bumps=self._bumps)
        )
        self._world.ended["committed" if commit else "aborted"] += 1
        self._who = now

    async def _try(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Again and again, as clients do after what can pass; or it dies."""
        for _ in range(12 if self._mortal else 200):
            if self._mortal and self._rng.random() < 0.01:
                raise GaveUp("died")
            try:
                return await attempt()
            except NoAnswer:
                pass
            except DovetailError as error:
                if not error.retriable:
                    raise GaveUp(str(error)) from error
            await asyncio.sleep(self._rng.random() * 0.4)
        raise GaveUp("no patience")

    async def _coordinator(self, work: Callable[[TransactionCoordinator], Awaitable[Any]]) -> Any:
        async def attempt() -> Any:
            there = [life for life in self._world.brokers() if life.transactions.of(self._name)]
            if not there:
                raise NotOwner("nobody coordinates it")
            life = self._rng.choice(there)

            async def serve() -> Any:
                coordinator = life.transactions.of(self._name)
                if coordinator is None:
                    raise NotOwner("not here any more")
                return await work(coordinator)

            found = await ask(life, serve, wait_s=ANSWER_S)
            if found in (TransactionError.FENCED, TransactionError.INVALID_STATE):
                raise GaveUp(found.value)
            if isinstance(found, TransactionError):
                raise Unavailable(found.value)
            return found

        return await self._try(attempt)

    async def _write(self, place: Place, value: bytes) -> None:
        key = (self._who, place.number)
        batch = build_batch(
            [NewRecord(CLOCK.wall_ms(), None, value)],
            producer_id=self._who.producer_id,
            producer_epoch=self._who.epoch,
            sequence=self._sequences[key],
            attributes=TRANSACTIONAL,
        )

        async def attempt() -> None:
            there = self._world.owner(place.number)
            if there is None:
                raise NotOwner("nobody has it")
            life, partition = there

            async def serve() -> None:
                raw = memoryview(bytearray(batch))
                await life.transactions.verification.append(
                    partition,
                    place,
                    raw,
                    check_batch(raw, bytes_max=100_000),
                    transactional_id=self._name,
                    adds=self._bumps,
                )

            if self._rng.random() < 0.05 and not self._world.calm:
                self._world.later(self._rng.random() * 2, self._send_late, life, serve)
            await ask(life, serve, wait_s=ANSWER_S)

        await self._try(attempt)
        self._sequences[key] += 1

    def _send_late(self, life: TransactionLife, serve: Callable[[], Awaitable[None]]) -> None:
        """The same batch once more, when its transaction may long be over."""

        async def late() -> None:
            with contextlib.suppress(DovetailError, NoAnswer):
                await ask(life, serve, wait_s=ANSWER_S)

        start(late())

    # Positions

    def _input(self) -> PartitionKey:
        return PartitionKey(f"input-{self._name}", 0)

    async def _group_call(self, work: Callable[[TransactionLife], Awaitable[Any]]) -> Any:
        async def attempt() -> Any:
            there = [
                life
                for life in self._world.brokers()
                if life.groups.of(self._group).refusal(self._group) is GroupError.NONE
            ]
            if not there:
                raise NotOwner("nobody coordinates the group")
            life = self._rng.choice(there)
            return await ask(life, lambda: work(life), wait_s=ANSWER_S)

        return await self._try(attempt)

    async def _journal(self) -> Place:
        async def work(life: TransactionLife) -> Place:
            return Place(*life.groups.journal_of(self._group))

        found: Place = await self._group_call(work)
        return found

    async def position(self) -> int:
        async def work(life: TransactionLife) -> int:
            found = await life.groups.of(self._group).fetch(self._group)
            if life.log is None or not life.log.holds_lease():
                raise NotOwner("its lease has ended, and the listener answers nobody")
            if found.error is not GroupError.NONE or self._input() in found.unstable:
                raise Unavailable("not stable")
            known = found.offsets.get(self._input())
            return 0 if known is None else known.offset

        item: int = await self._group_call(work)
        return item

    async def _commit_position(self, journal: Place, position: int) -> None:
        who, adds = self._who, self._bumps

        async def work(life: TransactionLife) -> None:
            number = await life.transactions.ask(Admit(self._name, *who, *journal, adds))
            outcomes = await life.groups.of(self._group).commit(
                self._group,
                NOBODY,
                Generation(-1),
                {self._input(): OffsetCommit(position)},
                of=TransactionOf(*who, number),
            )
            if outcomes[self._input()] is GroupError.TRANSACTION_ENDED:
                raise Refused("it has ended")
            if outcomes[self._input()] is not GroupError.NONE:
                raise Unavailable(outcomes[self._input()].name)

        await self._group_call(work)


async def keep_working(world: TransactionWorld, name: str) -> None:
    """Clients of an id, one after the other, and some at the same time."""
    while not world.resting:
        await asyncio.sleep(world.rng.random() * 0.8)
        work = Client(world, name).run(world.rng.randint(1, 5))
        if world.rng.random() < 0.4 and not world.calm:
            start(work)
        else:
            await work


async def positions(world: TransactionWorld) -> dict[str, int]:
    """Where each id stands in the end."""
    return {name: await Client(world, name, mortal=False).position() for name in IDS}


def whole(
    seen: dict[tuple[int, int], bytes], committed: dict[tuple[int, int], bytes], at: dict[str, int]
) -> None:
    """Raises `AssertionError` unless every item below the position is there once, and no other."""
    for place, value in seen.items():
        assert committed.get(place) == value, f"{value!r} was read at {place}, and is not there"
    found = Counter(committed.values())
    for name, position in at.items():
        for item in range(position):
            for part in range(2):
                record = f"{name}/{item}/{part}".encode()
                assert found.pop(record, 0) == 1, f"{record!r}, below {position}, is not there once"
    assert not found, f"no position tells of {list(found)[:3]}"
