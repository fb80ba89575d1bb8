"""The share-partitions of a broker's own partitions, and which brokers keep their state."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple

from dovetail.clock import Clock
from dovetail.errors import DovetailError, InvalidInput, NotOwner, TopicExists, Unavailable
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import GroupId, PartitionKey
from dovetail.log.service import Log
from dovetail.log.share.brokers import ShareBroker, ShareBrokers
from dovetail.log.share.calls import (
    BuryShare,
    Claimed,
    ClaimShare,
    Looked,
    LookShare,
    Stored,
    WriteShare,
)
from dovetail.log.share.dead_letters import batches_of, letters
from dovetail.log.share.group_settings import GroupSettingsTable
from dovetail.log.share.keeper import Keeper
from dovetail.log.share.types import (
    Acquired,
    Place,
    ShareCounts,
    ShareSettings,
    ShareState,
    ShareView,
)
from dovetail.record_batch import NewRecord, check_batch
from dovetail.record_check import check_records

#: Share-partitions that are counted and not in use. A consumer that restarts is back by then; the
#: counts of a group that is gone for good leave when others need the room.
_COUNTED_MAX = 10_000


class ShareRegistry:
    """Finds share-partitions; make it before the log starts."""

    def __init__(
        self,
        node_id: int,
        log: Log,
        groups: GroupRegistry,
        brokers: ShareBrokers,
        settings: GroupSettingsTable,
        clock: Clock,
        *,
        partitions_default: int,
        topic_auto_create: bool,
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._groups = groups
        self._brokers = brokers
        self.settings = settings
        self._clock = clock
        self._partitions_default = partitions_default
        self._auto_create = topic_auto_create
        self._keepers: dict[Place, Keeper] = {}
        #: What became of records, by share-partition, the one that was in use last behind.
        self._counts: dict[Place, ShareCounts] = {}
        #: What this broker answers to itself and to others.
        self.here: ShareBroker = AnswersHere(self, log, groups)
        log.owned.on_gone.append(self._on_gone)

    async def close(self) -> None:
        """Refuses all waiting requests."""
        for keeper in [*self._keepers.values()]:
            keeper.close(NotOwner("this node stops"))
        self._keepers.clear()
        await self._brokers.close()

    def of(self, group_id: str, topic: str, number: int) -> Keeper:
        """The keeper of a share-partition. Raises as `Log.partition` does."""
        partition = self._log.partition(topic, number)
        place = Place(group_id, topic, number)
        known = self._keepers.get(place)
        if known is not None and known.partition is partition:
            return known
        if known is not None:
            known.close(NotOwner(f"{partition.name} was taken over anew"))
        made = self._keepers[place] = Keeper(
            place,
            partition,
            self._log.topic(topic).id,
            self,
            self._bury,
            self._clock,
            self.settings.of,
            self._counts.pop(place, None),
        )
        return made

    def let_go(self, keeper: Keeper) -> None:
        """No client of this broker uses it: forgets it if no member has a record."""
        if keeper.idle and self._keepers.get(keeper.place) is keeper:
            del self._keepers[keeper.place]
            keeper.close(Unavailable("the share was not in use"))
            self._keep_counts(keeper)

    def keepers(self) -> Iterator[Keeper]:
        """Those that are here."""
        return iter([*self._keepers.values()])

    def counted(self) -> Iterator[tuple[Place, ShareCounts]]:
        """What became of records, of all share-partitions that were in use here."""
        yield from [(keeper.place, keeper.counts) for keeper in self.keepers()]
        yield from [*self._counts.items()]

    def _keep_counts(self, keeper: Keeper) -> None:
        if keeper.counts != ShareCounts():
            self._counts[keeper.place] = keeper.counts
            if len(self._counts) > _COUNTED_MAX:
                del self._counts[next(iter(self._counts))]

    def trim(self) -> None:
        """Logs may begin later now; called from time to time. Forgets what nothing came of, such as
        shares of groups that do not exist."""
        for keeper in self.keepers():
            keeper.trim()
            if not keeper.claimed:
                self.let_go(keeper)

    def _on_gone(self, name: str, number: int) -> None:
        for place in [place for place in self._keepers if place[1:] == (name, number)]:
            keeper = self._keepers.pop(place)
            keeper.close(NotOwner(f"{name}-{number} is not owned by this node any more"))
        for place in [place for place in self._counts if place[1:] == (name, number)]:
            del self._counts[place]

    # --- the coordinator of a group, wherever it is (`ShareStore`) ------------------------------

    async def claim(self, place: Place, topic_id: str, term: int) -> ShareState:
        request = ClaimShare(*place, topic_id, term)
        return (await self._coordinator(place.group_id).claim(request)).state

    async def write(self, place: Place, state: ShareState) -> None:
        await self._coordinator(place.group_id).write(WriteShare(*place, state))

    def _coordinator(self, group_id: str) -> ShareBroker:
        owner = self._groups.owner_of(GroupId(group_id))
        return self.here if owner == self._node_id else self._brokers.to(owner)

    # --- looking --------------------------------------------------------------------------------

    async def look(self, group_id: str, places: Collection[PartitionKey]) -> Looked:
        """How far a group is in these partitions, each asked of its owner; those that do not answer
        have no end."""
        by_owner: dict[int, list[PartitionKey]] = {}
        for place in places:
            owner = self._log.ownership(self._log.topic(place.topic), place.partition).owner
            by_owner.setdefault(owner, []).append(place)

        found: dict[PartitionKey, tuple[int, ShareView | None, tuple[int, ...]]] = {}
        for owner, asked in by_owner.items():
            request = LookShare(group_id, [(place.topic, place.partition) for place in asked])
            try:
                broker = self.here if owner == self._node_id else self._brokers.to(owner)
                answer = await broker.look(request)
            except DovetailError:
                continue
            counts = answer.counts or [()] * len(asked)
            rows = zip(answer.ends, answer.views, counts, strict=True)
            found.update(zip(asked, rows, strict=True))
        nothing: tuple[int, None, tuple[int, ...]] = (-1, None, ())
        shown = [found.get(place, nothing) for place in places]
        return Looked([row[0] for row in shown], [row[1] for row in shown], [r[2] for r in shown])

    # --- dead letters ---------------------------------------------------------------------------

    async def _bury(self, keeper: Keeper, dying: Acquired, settings: ShareSettings) -> None:
        now_ms = self._clock.wall_ms()
        made = await letters(keeper.place, keeper.partition, dying, settings, now_ms=now_ms)
        if made and settings.dead_letters:
            failed = await self.put(settings.dead_letters, {keeper.place.number: made})
            for error in failed.values():
                raise error

    def is_or_will_be(self, topic: str) -> bool:
        """Whether dead letters can go to a topic: it is there, or would be made."""
        return self._auto_create or any(each.name == topic for each in self._log.topics())

    async def put(
        self, topic: str, lanes: Mapping[int, Sequence[NewRecord]]
    ) -> dict[int, DovetailError]:
        """Stores dead letters in a topic, those of one lane in one partition.

        The lanes that are not stored, and why: one partition may be away. Raises `DovetailError` if
        none can be.
        """
        if self._auto_create and all(each.name != topic for each in self._log.topics()):
            try:
                await self._log.create_topic(topic, partitions=self._partitions_default)
            except TopicExists:  # Another broker is making it.
                raise Unavailable(f"another broker is creating topic {topic!r}") from None

        record = self._log.topic(topic)
        by_number: dict[int, list[int]] = {}
        for lane in lanes:
            by_number.setdefault(lane % record.partitions, []).append(lane)
        failed: dict[int, DovetailError] = {}
        for number, of_number in by_number.items():
            made = [letter for lane in of_number for letter in lanes[lane]]
            try:
                owner = self._log.ownership(record, number).owner
                broker = self.here if owner == self._node_id else self._brokers.to(owner)
                for batch in batches_of(made, self._log.config(record).batch_bytes_max):
                    await broker.bury(BuryShare(record.name, number, batch))
            except DovetailError as error:
                failed |= dict.fromkeys(of_number, error)
        return failed


class AnswersHere:
    """What this broker answers about share groups (`ShareBroker`)."""

    def __init__(self, shares: ShareRegistry, log: Log, groups: GroupRegistry) -> None:
        self._shares = shares
        self._log = log
        self._groups = groups

    async def claim(self, request: ClaimShare) -> Claimed:
        """As the coordinator of the group."""
        group_id, topic, number, topic_id, term = (
            request.group_id,
            request.topic,
            request.number,
            request.topic_id,
            request.term,
        )
        coordinator = self._groups.of(GroupId(group_id))
        place = PartitionKey(topic, number)
        return Claimed(await coordinator.claim_share(GroupId(group_id), place, topic_id, term))

    async def write(self, request: WriteShare) -> Stored:
        """As the coordinator of the group."""
        coordinator = self._groups.of(GroupId(request.group_id))
        place = PartitionKey(request.topic, request.number)
        await coordinator.write_share(GroupId(request.group_id), place, request.state)
        return Stored()

    async def look(self, request: LookShare) -> Looked:
        """As the owner of partitions."""
        known = {keeper.place: keeper for keeper in self._shares.keepers()}
        counted = dict(self._shares.counted())
        ends, views, counts = [], [], []
        for topic, number in request.partitions:
            place = Place(request.group_id, topic, number)
            keeper = known.get(place)
            counts.append(astuple(counted[place]) if place in counted else ())
            try:
                ends.append(self._log.partition(topic, number).high_watermark)
            except DovetailError:
                ends.append(-1)
            views.append(None if keeper is None else keeper.view())
        return Looked(ends, views, counts)

    async def bury(self, request: BuryShare) -> Stored:
        """As the owner of a partition for dead letters."""
        partition = self._log.partition(request.topic, request.number)
        batch = memoryview(bytearray(request.batch))
        if not request.batch:
            raise InvalidInput("the batch of dead letters is empty")
        header = check_batch(batch, bytes_max=len(batch))
        # Letters without a key would not survive compaction: they wait for another topic.
        check_records(batch, header, keyed=partition.config.compacts)
        await partition.append(batch, header)
        return Stored()
