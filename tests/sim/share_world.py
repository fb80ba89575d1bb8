"""Brokers with share groups, producers, and members that acquire, think and acknowledge.

Members fetch from whoever believes to own a partition, hold records for a while, often longer than
the lock, and accept, release, reject or renew them, or forget about them. Calls between brokers are
lost, late and doubled; brokers die, hang and lose their leases, as owners and as coordinators.

What must be true, whoever died when:

- What somebody was told to be accepted or rejected is never delivered again, and nobody else is
  told that it accepted it.
- An owner gives a record to one member at a time, and not more often than the limit.
- In the end every record that was produced is accepted, or has a dead letter. A dead letter has a
  reason: somebody rejected the record, or it was delivered as often as the limit says.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.broker_clients import NoAnswer, ask
from tests.sim.brokers import CLOCK, Life
from tests.sim.wired_world import WiredWorld

from dovetail.errors import DovetailError, NotOwner
from dovetail.log.groups.consumer_types import ConsumerBeat
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import GroupError, GroupId, GroupSettings, MemberId
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage
from dovetail.log.service import Log
from dovetail.log.share.calls import (
    BuryShare,
    Claimed,
    ClaimShare,
    Looked,
    LookShare,
    Stored,
    WriteShare,
)
from dovetail.log.share.keeper import Keeper
from dovetail.log.share.registry import ShareRegistry
from dovetail.log.share.share_partition import SharePartition
from dovetail.log.share.types import (
    Acknowledge,
    Acknowledgement,
    Acquired,
    Batch,
    ShareError,
    ShareSettings,
)
from dovetail.record_batch import NewRecord, build_batch, check_batch, decode_batch, read_header

TOPIC, PARTITIONS, LETTERS = "in", 2, "dlq.in"
GROUP = GroupId("g")
ANSWER_S = 3.0
LIMITS = ShareSettings(
    lock_ms=1_500,
    deliveries_max=3,
    in_flight_max=12,
    session_timeout_ms=600_000,
    begins="earliest",
    dead_letters=LETTERS,
    dead_letters_whole=True,
)


class FixedSettings:
    """All groups have the same."""

    def of(self, group_id: str) -> ShareSettings:
        return LIMITS


class ShareLife(Life):
    """A broker with groups and what they share."""

    world: "ShareWorld"
    groups: GroupRegistry
    shares: ShareRegistry

    def made(self, log: Log) -> None:
        self.groups = GroupRegistry(
            log,
            CLOCK,
            GroupSettings(share=LIMITS),
            partitions=2,
            topics_of=lambda _kind, _data: None,
        )
        self.shares = ShareRegistry(
            self.author.number,
            log,
            self.groups,
            WireShareBrokers(self.author.number, self.world),
            FixedSettings(),  # type: ignore[arg-type]
            CLOCK,
            partitions_default=1,
            topic_auto_create=True,
        )

    async def started(self) -> None:
        await self.groups.start()


class WireShareBrokers:
    """The other brokers at the end of wires."""

    def __init__(self, number: int, world: "ShareWorld") -> None:
        self._number = number
        self._world = world

    def to(self, node: int) -> "WireShareBroker":
        return WireShareBroker(self._number, node, self._world)

    async def close(self) -> None:
        """The wires stay."""


class WireShareBroker:
    """One of them."""

    def __init__(self, number: int, node: int, world: "ShareWorld") -> None:
        self._number, self._node, self._world = number, node, world

    async def claim(self, request: ClaimShare) -> Claimed:
        found: Claimed = await self._ask(lambda there: there.shares.here.claim(request))
        return found

    async def write(self, request: WriteShare) -> Stored:
        found: Stored = await self._ask(lambda there: there.shares.here.write(request))
        return found

    async def look(self, request: LookShare) -> Looked:
        found: Looked = await self._ask(lambda there: there.shares.here.look(request))
        return found

    async def bury(self, request: BuryShare) -> Stored:
        found: Stored = await self._ask(lambda there: there.shares.here.bury(request))
        return found

    async def _ask(self, work: Callable[[ShareLife], Any]) -> Any:
        return await self._world.call(self._number, self._node, work)


@dataclass(slots=True)
class Fate:
    """What is known of one record."""

    value: bytes
    accepted_by: str = ""
    rejected: bool = False
    #: What somebody asked for without hearing of it.
    maybe_done: bool = False
    deliveries: int = 0
    #: The machine that gave it away last, to whom, and until when.
    lock: tuple[SharePartition | None, str, float] = (None, "", 0.0)


@dataclass(slots=True)
class Held:
    """Records that a member has."""

    life: "ShareLife"
    keeper: Keeper
    number: int
    offsets: list[int] = field(default_factory=list)


class ShareWorld(WiredWorld[ShareLife]):
    """Everybody, and what is known of each record."""

    broker_class = ShareLife
    topic, partitions = TOPIC, PARTITIONS

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fates: dict[tuple[int, int], Fate] = {}
        #: Values that a producer was told to be stored.
        self.produced: set[bytes] = set()
        self.told: Counter[str] = Counter()

    def owner(self, topic: str, number: int) -> ShareLife | None:
        """Somebody who has the partition open, and may be wrong about that."""
        there = [
            life
            for life in self.brokers()
            if life.log is not None and (topic, number) in life.log.owned.open
        ]
        return self.rng.choice(there) if there else None

    # What happened

    def delivered(
        self, number: int, got: Acquired, values: dict[int, bytes], member: str, by: SharePartition
    ) -> None:
        now = asyncio.get_running_loop().time()
        for offset in range(got.first, got.last + 1):
            fate = self.fates.setdefault((number, offset), Fate(values[offset]))
            assert fate.value == values[offset]
            assert not fate.accepted_by, f"{number}/{offset} was accepted, and is delivered again"
            assert not fate.rejected, f"{number}/{offset} was rejected, and is delivered again"
            machine, other, until = fate.lock
            assert machine is not by or until <= now, f"{number}/{offset}: {other}, {member}"
            assert got.deliveries <= LIMITS.deliveries_max, f"{number}/{offset}: {got.deliveries}"
            fate.deliveries += 1
            fate.lock = (by, member, now + LIMITS.lock_ms / 1000)
            self.told["delivered"] += 1

    def said(self, number: int, offset: int, kind: Acknowledge, member: str) -> None:
        """It was asked for: from now on it may be so."""
        fate = self.fates[number, offset]
        if kind is Acknowledge.RENEW:
            fate.lock = (*fate.lock[:2], 0.0)  # The new lock ends later; nobody knows when.
        fate.maybe_done = fate.maybe_done or kind in (Acknowledge.ACCEPT, Acknowledge.REJECT)
        if kind is Acknowledge.RELEASE:
            fate.lock = (None, "", 0.0)

    def heard(self, number: int, offset: int, kind: Acknowledge, member: str) -> None:
        """It was answered that it is so."""
        fate = self.fates[number, offset]
        self.told[kind.name] += 1
        if kind is Acknowledge.ACCEPT:
            assert not fate.accepted_by, f"{number}/{offset}: {fate.accepted_by} and {member}"
            assert not fate.rejected, f"{number}/{offset} was rejected, and {member} accepts it"
            fate.accepted_by = member
        if kind is Acknowledge.REJECT:
            assert not fate.accepted_by, f"{number}/{offset} was accepted, and {member} rejects it"
            fate.rejected = True


class Member:
    """One share consumer."""

    def __init__(self, world: ShareWorld, name: str) -> None:
        self._world = world
        self._rng = world.rng
        self.name = name

    async def run(self) -> None:
        while not self._world.resting:
            await asyncio.sleep(self._rng.random() * 0.2)
            number = self._rng.randrange(PARTITIONS)
            life = self._world.owner(TOPIC, number)
            if life is None:
                continue
            with contextlib.suppress(DovetailError, NoAnswer):
                held = await ask(
                    life, lambda at=life, n=number: self._fetch(at, n), wait_s=ANSWER_S
                )  # type: ignore[misc]
                if held is not None:
                    await self._work(held)

    async def _fetch(self, life: ShareLife, number: int) -> Held | None:
        """As ShareFetch does it."""
        assert life.log is not None
        partition = life.log.partition(TOPIC, number)
        keeper = life.shares.of(GROUP, TOPIC, number)
        machine = await keeper.ready()
        offset = machine.next_offset
        if offset is None or offset >= partition.high_watermark:
            return None
        batches = await read_from_storage(partition, offset, 400)
        if not life.log.holds_lease() or not partition.serving:
            raise NotOwner("its lease has ended meanwhile")
        values = {r.offset: r.value or b"" for batch in batches for r in decode_batch(batch)}
        headers = [read_header(batch) for batch in batches]
        found = keeper.acquire(
            self.name,
            machine,
            offset,
            [Batch(header.base_offset, header.offset_end - 1) for header in headers],
            records_max=self._rng.randint(1, 6),
            strict=self._rng.random() < 0.5,
        )
        held = Held(life, keeper, number)
        for got in found:
            self._world.delivered(number, got, values, self.name, machine)
            held.offsets += range(got.first, got.last + 1)
        return held if held.offsets else None

    async def _work(self, held: Held) -> None:
        calm = self._world.calm
        kinds = [self._choose(calm) for _ in held.offsets]
        if self._rng.random() < 0.5:
            kinds = [kinds[0]] * len(kinds)
        if not calm:
            await asyncio.sleep(self._rng.choice((0, 0, 0.3, 1.0, 1.4, 2.5)))
        if self._rng.random() < 0.1 and not calm:
            return  # It forgets about them, or dies.
        await self._say(held, kinds)
        left = [
            offset
            for offset, kind in zip(held.offsets, kinds, strict=True)
            if kind is Acknowledge.RENEW
        ]
        if left and not calm:
            await asyncio.sleep(self._rng.random() * 2)
            held.offsets = left
            await self._say(held, [Acknowledge.ACCEPT] * len(left))

    def _choose(self, calm: bool) -> Acknowledge:
        if calm:
            return Acknowledge.ACCEPT
        kinds = (Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.REJECT, Acknowledge.RENEW)
        return self._rng.choices(kinds, (12, 4, 2, 3))[0]

    async def _say(self, held: Held, kinds: list[Acknowledge]) -> None:
        said = [
            Acknowledgement(offset, offset, (int(kind),))
            for offset, kind in zip(held.offsets, kinds, strict=True)
        ]
        pairs = [*zip(held.offsets, kinds, strict=True)]
        for offset, kind in pairs:
            self._world.said(held.number, offset, kind, self.name)

        async def work() -> ShareError:
            assert held.life.log is not None
            held.life.log.partition(TOPIC, held.number)
            keeper = held.life.shares.of(GROUP, TOPIC, held.number)
            error = await keeper.acknowledge(self.name, said)
            if error is ShareError.NONE:
                for offset, kind in pairs:
                    self._world.heard(held.number, offset, kind, self.name)
            return error

        await ask(held.life, work, wait_s=12.0)


async def keep_joined(world: ShareWorld) -> None:
    """There is a share group, whoever coordinates it; and there is one once it was there."""
    epoch = 0
    while not world.resting:
        await asyncio.sleep(0.3)
        there = [
            life
            for life in world.brokers()
            if life.groups.of(GROUP).refusal(GROUP) is GroupError.NONE
        ]
        if not there:
            continue
        life = world.rng.choice(there)
        beat = ConsumerBeat(
            member_id=MemberId("m"), epoch=epoch, names=(TOPIC,) if epoch == 0 else None
        )
        with contextlib.suppress(DovetailError, NoAnswer):
            found = await ask(
                life, lambda at=life, b=beat: at.groups.of(GROUP).beat_share(GROUP, b), wait_s=2
            )  # type: ignore[misc]
            if found.error is GroupError.NONE:
                epoch = found.epoch
            elif found.error in (GroupError.UNKNOWN_MEMBER, GroupError.FENCED_MEMBER_EPOCH):
                epoch = 0


async def produce(world: ShareWorld) -> None:
    """Records, some of them in batches, until it is calm."""
    made = 0
    while not world.calm:
        await asyncio.sleep(world.rng.random() * 0.3)
        number = world.rng.randrange(PARTITIONS)
        life = world.owner(TOPIC, number)
        if life is None:
            continue
        values = [b"%d" % (made + at) for at in range(world.rng.randint(1, 5))]
        made += len(values)
        raw = build_batch([NewRecord(CLOCK.wall_ms(), None, value) for value in values])

        async def work(at: ShareLife = life, n: int = number, raw: bytes = raw) -> None:
            assert at.log is not None
            batch = memoryview(bytearray(raw))
            await at.log.partition(TOPIC, n).append(batch, check_batch(batch, bytes_max=100_000))

        with contextlib.suppress(DovetailError, NoAnswer):
            await ask(life, work, wait_s=ANSWER_S)
            world.produced.update(values)


async def everything(world: ShareWorld, topic: str, number: int) -> dict[int, bytes]:
    """All records of a partition, in the end."""
    offset, found = 0, {}
    deadline = asyncio.get_running_loop().time() + 20
    while True:
        assert asyncio.get_running_loop().time() < deadline, f"{topic}-{number} cannot be read"
        life = world.owner(topic, number)
        if life is None:
            await asyncio.sleep(0.1)
            continue

        async def work(at: ShareLife = life, offset: int = offset) -> tuple[int, list[Any], bool]:
            assert at.log is not None
            partition: Partition = at.log.partition(topic, number)
            if offset >= partition.high_watermark:
                return offset, [], True
            batches = await read_from_storage(partition, offset, 10_000)
            records = [record for batch in batches for record in decode_batch(batch)]
            return read_header(batches[-1]).offset_end, records, False

        with contextlib.suppress(DovetailError, NoAnswer):
            offset, records, at_end = await ask(life, work, wait_s=ANSWER_S)
            found.update({record.offset: record.value or b"" for record in records})
            if at_end:
                return found


def undone(world: ShareWorld) -> str:
    """What is not finished of all that was produced."""
    for number in range(PARTITIONS):
        ready = []
        for life in world.brokers():
            if life.log is None or (TOPIC, number) not in life.log.owned.open:
                continue
            ready += [k for k in life.shares.keepers() if k.place.number == number]
        views = [keeper.view() for keeper in ready]
        if not any(view is not None and view.lag == 0 for view in views):
            return f"{TOPIC}-{number}: {views}"
    return ""


def check_end(world: ShareWorld, stored: dict[tuple[int, int], bytes], letters: set[bytes]) -> None:
    """Raises `AssertionError` unless nothing is lost, and nothing died without a reason."""
    values = set(stored.values())
    lost = world.produced - values
    assert not lost, f"produced and not there: {sorted(lost)[:3]}"
    for place, value in stored.items():
        fate = world.fates.get(place)
        assert fate is not None, f"{place} was never delivered"
        if fate.rejected:
            assert value in letters, f"{place} was rejected, and has no dead letter"
        done = fate.accepted_by or fate.maybe_done
        assert done or value in letters, f"{place} is lost: {fate}"
        if value in letters:
            reason = fate.maybe_done or fate.deliveries >= LIMITS.deliveries_max
            assert reason, f"{place} has a dead letter for no reason: {fate}"
            assert not fate.accepted_by, f"{place} was accepted, and has a dead letter"
