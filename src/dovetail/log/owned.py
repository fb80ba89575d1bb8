"""The partitions of this broker: the doing part of `claims.py`.

Whenever the records or the brokers change, it decides again. Then it opens the partitions that it
may claim, drops those that another broker has claimed, and gives away what balance demands. A
partition that cannot be opened is out of service and reports why; the others are served (B18). If
this broker cannot reach the storage nodes but another might, the partition is handed over after a
few attempts.

    (vacant) --claim--> opening --opened--> open --give--> closing --named--> (the taker's)
                           |                  |
                           +--not ours--------+--another's term--> (forgotten)
                           +--failed--> broken --again--> opening
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from dovetail.background import Alarm, failure_of, later, start_task
from dovetail.coordination.protocol import Unchanged
from dovetail.errors import DovetailError, Fenced, NotOwner, TopicUnknown
from dovetail.log.catalog import Catalog, partition_key
from dovetail.log.claims import Claims, Decision, assign
from dovetail.log.context import PartitionContext
from dovetail.log.owners import DELETED, NOBODY, Place
from dovetail.log.ownership import hand_on
from dovetail.log.partition import Partition
from dovetail.log.peers import Peers
from dovetail.log.topic import TopicConfig, TopicRecord
from dovetail.logging import get_logger
from dovetail.storage.chain import PartitionRecord
from dovetail.storage.selection import least_loaded

_log = get_logger("log")

#: Partitions that are opened or closed at the same time. Their writes share syncs, and each may
#: hold 2 MB that it reads: 1000 partitions with 10 MB each need 340 MB at 128, 140 MB at 32.
_AT_ONCE = 32

#: A partition that could not be opened for want of something that may come back is tried again.
REOPEN_MS = 1000

#: One that is damaged is tried again too, for a peer of the damaged node that was away.
_DAMAGED_AGAIN_MS = 30_000

#: Attempts to open a partition before another broker is asked to.
_ATTEMPTS_ALONE = 3

#: A partition that could not be mended for so long is handed on. A takeover takes milliseconds.
_STUCK_MS = 5000

#: Pause after losing a race for a partition; by then the view has the winner.
_RACE_MS = 100

#: How long a broker that has given everything away stays, so that clients learn where it went. They
#: ask every 20 to 100 ms; one that is cut off before asks others when its own timer says so, and
#: with librdkafka that is a second later.
_LINGER_MS = 300

#: Called with a partition that is served from now on, or no more.
Opened = Callable[[TopicRecord, int, Partition], None]
Gone = Callable[[str, int], None]


@dataclass(slots=True)
class _Owned:
    """A partition that this broker has, or is working on."""

    name: str
    number: int
    config: dict[str, str]
    partition: Partition | None = None
    #: Opening or giving; None while it is simply served.
    work: "asyncio.Task[None] | None" = None


class OwnedPartitions:
    """Opens, serves and gives back partitions."""

    def __init__(
        self,
        catalog: Catalog,
        peers: Peers,
        claims: Claims,
        *,
        config_of: Callable[[TopicRecord], TopicConfig],
    ) -> None:
        self._catalog = catalog
        self._peers = peers
        self._claims = claims
        self._config_of = config_of
        self._context: PartitionContext
        self._owned: dict[Place, _Owned] = {}
        #: What is looked at when it is decided next: its record, topic or state here is new.
        self._changed: dict[Place, None] = {}
        #: What was claimed while it was being mended, perhaps by ourselves.
        self._doubtful: dict[Place, None] = {}
        #: Why a partition was not taken at the last attempt.
        self._refusals: dict[Place, str] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._waiters: set[asyncio.Event] = set()
        self._deciding = Alarm(self._decide, name="log/decide")
        self._alarm = Alarm(self.reconsider, name="log/reconsider")
        self._closed = False
        #: What is served, by topic name and number.
        self.open: dict[tuple[str, int], Partition] = {}
        #: What is out of service, and why.
        self.broken: dict[tuple[str, int], DovetailError] = {}
        self.on_opened: list[Opened] = []
        self.on_gone: list[Gone] = []

    def start(self, context: PartitionContext) -> None:
        """Decides from now on; the catalog has been read."""
        self._context = context
        self._peers.on_change.append(self.reconsider)
        self._decide()

    def reconsider(self) -> None:
        """Something changed: decides soon, once for all that changed by then."""
        for waiter in self._waiters:
            waiter.set()
        if not self._deciding.is_set and not self._closed:
            self._deciding.set(0)

    async def settled(self, done: Callable[[], bool], *, timeout_ms: int | None = None) -> bool:
        """Waits until `done`, which is asked after every change; whether it became so in time."""
        changed = asyncio.Event()
        self._waiters.add(changed)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while not done():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(changed)
        return True

    def busy(self, place: Place) -> bool:
        """Whether the partition is being opened or given away here."""
        owned = self._owned.get(place)
        return owned is not None and owned.work is not None and owned.partition is None

    async def close(self) -> None:
        """Gives every partition back, to others where there are some."""
        self._closed = True
        self._alarm.cancel()
        for owned in self._owned.values():
            if owned.work is not None and owned.partition is None:
                owned.work.cancel()
        at_work = [owned.work for owned in self._owned.values() if owned.work is not None]
        await asyncio.gather(*at_work, return_exceptions=True)

        # A node whose start broke off owns nothing, and has not begun to decide.
        successors = self._successors() if self._owned else {}
        for key in [*self.open]:
            self._withdraw(*key)
        await asyncio.gather(
            *(
                self._close(owned.partition, successors.get(place))
                for place, owned in self._owned.items()
                if owned.partition is not None
            )
        )

        self._owned.clear()
        if successors:
            await asyncio.sleep(_LINGER_MS / 1000)

    # Deciding

    def _decide(self) -> None:
        if self._closed:
            return
        self.drop_what_is_not_ours()

        now_ms = self._now()
        changed, self._changed = self._changed, {}
        try:
            decision = self._claims.decide(
                self._catalog.owners,
                self._peers.brokers(),
                self._owned.keys(),
                changed=changed,
                now_ms=now_ms,
            )
        except DovetailError as error:  # The user's own strategy failed.
            _log.error("cannot decide what to claim", error=str(error))
            decision = Decision(again_ms=now_ms + REOPEN_MS)

        for place in decision.claim:
            record = self._catalog.living(place.topic_id)
            if record is not None and place not in self._owned:
                owned = _Owned(record.name, place.number, record.config)
                self._owned[place] = owned
                self._start(place, owned, self._open(place, owned))
        for place, taker in decision.give:
            self._give(place, taker)

        self._alarm.cancel()
        if decision.again_ms is not None:
            self._alarm.set(max(decision.again_ms - now_ms, 1.0) / 1000)

    def drop_what_is_not_ours(self) -> None:
        """Nothing is served that another has, by the records as last seen."""
        if self._closed:
            return
        self._changed.update(self._catalog.take_changed())
        for place in [*self._changed]:
            if self._refusals and self._catalog.living(place.topic_id) is None:
                self._refusals.pop(place, None)
            owned = self._owned.get(place)
            if owned is not None:
                self._look_at(place, owned)

    def _look_at(self, place: Place, owned: _Owned) -> None:
        record = self._catalog.living(place.topic_id)
        ownership = self._catalog.ownership(place)
        partition = owned.partition
        if record is None:
            self._forget(place, owned)
            return
        if partition is None:
            return  # It is looked at again when it is open.

        if ownership.term > partition.term:
            # Also under our own number: a former life, or one that has replaced us, claimed it.
            # Unless it is being mended: then the claim may be our own.
            if partition.mending and ownership.owner == self._context.node_id:
                self._doubtful[place] = None
            else:
                partition.lose(NotOwner(f"{partition.name} belongs to node {ownership.owner} now"))
                return
        partition.assigned = record.assigned.get(place.number, ())
        if record.config != owned.config:
            owned.config = record.config
            partition.config = self._config_of(record)

    def _forget(self, place: Place, owned: _Owned) -> None:
        """The topic was deleted."""
        del self._owned[place]
        self._withdraw(owned.name, owned.number)
        self.broken.pop((owned.name, owned.number), None)
        if owned.partition is not None:
            owned.partition.lose(NotOwner(f"topic {owned.name!r} was deleted"))
        if owned.work is not None:
            owned.work.cancel()

    def _withdraw(self, name: str, number: int) -> None:
        if self.open.pop((name, number), None) is not None:
            for listener in self.on_gone:
                listener(name, number)

    def lost(self, partition: Partition, error: NotOwner) -> None:
        """A partition found out by itself that it is another's."""
        record = partition.chain.record
        place = Place(record.topic_id, record.partition)
        owned = self._owned.get(place)
        if owned is not None and owned.partition is partition:
            _log.warning("partition lost", partition=partition.name, error=str(error))
            owned.partition = None
            self._withdraw(owned.name, owned.number)
            self._start(place, owned, self._forget_later(place, owned))

    async def _forget_later(self, place: Place, owned: _Owned) -> None:
        await asyncio.sleep(_RACE_MS / 1000)
        self._done(place, owned)

    # Opening

    async def _open(self, place: Place, owned: _Owned) -> None:
        """Opens a partition, however long that takes, or finds that it is not ours."""
        attempts, name = 0, f"{owned.name}-{owned.number}"
        while True:
            record = self._catalog.living(place.topic_id)
            if record is None:
                break
            try:
                async with self._limit:
                    partition = await Partition.open(
                        self._context,
                        partition_key(*place),
                        name,
                        self._config_of(record),
                        may_claim=self._may_claim,
                        only_if=self._owner_is_gone,
                    )
                if self._catalog.ownership(place).term > partition.term:
                    raise NotOwner(f"another broker claimed {name} while this one opened it")

            except (NotOwner, TopicUnknown, Fenced) as error:  # Fenced: another has a higher term.
                self._note_refusal(place, name, str(error))
                await asyncio.sleep(_RACE_MS / 1000)
                break
            except DovetailError as error:
                self._out_of_service(owned, error)
                if not error.retriable:
                    await asyncio.sleep(_DAMAGED_AGAIN_MS / 1000)
                    continue
                attempts += 1
                if attempts >= _ATTEMPTS_ALONE and await self._hand_on(place):
                    break
                await asyncio.sleep(REOPEN_MS / 1000)

            else:
                _log.info("partition taken", partition=name, term=partition.term)
                self._refusals.pop(place, None)
                partition.assigned = record.assigned.get(place.number, ())
                owned.work, owned.partition, owned.config = None, partition, record.config
                self._serve(record, owned, partition)
                return

        self.broken.pop((owned.name, owned.number), None)
        self._done(place, owned)

    def _note_refusal(self, place: Place, name: str, why: str) -> None:
        """Logs why a claim was refused, once: it is tried every `_RACE_MS` as long as it is so."""
        if self._refusals.get(place) != why:
            self._refusals[place] = why
            _log.info("partition not taken", partition=name, why=why)

    def _serve(self, record: TopicRecord, owned: _Owned, partition: Partition) -> None:
        if self.broken.pop((owned.name, owned.number), None) is not None:
            _log.info("partition back in service", partition=partition.name)
        self.open[owned.name, owned.number] = partition
        self._changed[Place(record.id, owned.number)] = None
        for listener in self.on_opened:
            listener(record, owned.number, partition)
        self.reconsider()

    def _out_of_service(self, owned: _Owned, error: DovetailError) -> None:
        key = (owned.name, owned.number)
        if key not in self.broken:
            _log.error(
                "partition out of service",
                partition=f"{owned.name}-{owned.number}",
                error=str(error),
            )
        self.broken[key] = error
        self.reconsider()

    def _may_claim(self, record: PartitionRecord) -> bool:
        """Whether a partition is free for us, by its record as it is at this moment."""
        if record.owner in (DELETED, self._context.node_id):
            return record.owner != DELETED
        return record.owner not in self._peers.brokers().alive

    def _owner_is_gone(self, record: PartitionRecord) -> Sequence[Unchanged]:
        if record.owner in (NOBODY, self._context.node_id):
            return ()
        return self._peers.absence_of(record.owner)

    # Giving

    def _give(self, place: Place, taker: int) -> None:
        owned = self._owned.get(place)
        if owned is None or owned.partition is None or owned.work is not None:
            return
        partition = owned.partition
        _log.info("partition given", partition=partition.name, to=taker)
        self._withdraw(owned.name, owned.number)

        async def give() -> None:
            await self._close(partition, taker)
            self._done(place, owned)

        self._start(place, owned, give())

    def hand_on_stuck(self) -> None:
        """Hands on what could not be mended for a while; called from time to time."""
        if self._doubtful:
            self._changed.update(self._doubtful)
            self._doubtful.clear()
            self.reconsider()
        for place, owned in [*self._owned.items()]:
            partition = owned.partition
            if partition is None or partition.stuck_since_ms is None or owned.work is not None:
                continue

            if self._now() - partition.stuck_since_ms >= _STUCK_MS:
                successor = self._successors().get(place)
                if successor is not None:
                    self._peers.decline()
                    self._give(place, successor)

    async def _hand_on(self, place: Place) -> bool:
        """Asks another broker to take a partition that cannot be opened here."""
        successor = self._successors().get(place)
        if successor is None:
            return False
        self._peers.decline()
        try:
            await hand_on(
                self._context.coordinator,
                partition_key(*place),
                owner=self._context.node_id,
                successor=successor,
            )
        except DovetailError:
            return False
        return True

    def _successors(self) -> dict[Place, int]:
        """Who should have what is owned here, if this node had it no more."""
        others = self._peers.brokers().willing - {self._context.node_id}
        known = self._catalog.owners
        try:
            assigned = assign(self._owned.keys(), known, others, self._claims.select)
        except DovetailError as error:  # The user's own strategy failed; giving back must not.
            _log.error("strategy failed; choosing successors by load", error=str(error))
            assigned = assign(self._owned.keys(), known, others, least_loaded)
        return {place: order[0] for place, order in assigned.items()}

    async def _close(self, partition: Partition, successor: int | None) -> None:
        try:
            async with self._limit:
                await partition.close(successor=successor)
        except DovetailError as error:
            _log.warning("partition not closed cleanly", partition=partition.name, error=str(error))

    def _done(self, place: Place, owned: _Owned) -> None:
        if self._owned.get(place) is owned:
            del self._owned[place]
        self._changed[place] = None
        self.reconsider()

    def _now(self) -> float:
        return self._context.clock.monotonic_ms()

    def _start(self, place: Place, owned: _Owned, work: Coroutine[None, None, None]) -> None:
        """Works on a partition; a defect leaves it free to be claimed again, not forgotten."""
        task = owned.work = start_task(
            work, name="log/ownership", of=f"{owned.name}-{place.number}"
        )

        def ended(task: "asyncio.Task[None]") -> None:
            if failure_of(task) is not None:
                again = partial(self._done, place, owned)
                later(REOPEN_MS / 1000, again, name="log/reopen", of=owned.name)

        task.add_done_callback(ended)
