"""The transactions of a broker: which broker coordinates a transactional id, and those here.

`log/coordinators.py` starts and ends coordinators.
"""

from collections.abc import Iterator

from dovetail.clock import Clock
from dovetail.errors import InvalidInput, NotOwner
from dovetail.log.coordinators import Coordinators
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.service import Log
from dovetail.log.transactions.brokers import Brokers
from dovetail.log.transactions.calls import Admit
from dovetail.log.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dovetail.log.transactions.markers import Markers
from dovetail.log.transactions.transaction import Transaction
from dovetail.log.transactions.types import Identity, Place, TransactionError, raised
from dovetail.log.transactions.verification import Verification

TRANSACTIONS_TOPIC = "__dovetail_transactions"

#: Longest transactional id; what the protocol's older versions could carry.
ID_CHARACTERS_MAX = 32_767


class TransactionRegistry:
    """Finds the coordinator of a transactional id; make it before the log starts."""

    def __init__(
        self,
        node_id: int,
        log: Log,
        groups: GroupRegistry,
        brokers: Brokers,
        clock: Clock,
        settings: TransactionSettings,
        *,
        partitions: int,
    ) -> None:
        """`partitions` is for the transactions' topic, should it not exist yet."""
        self._node_id = node_id
        self._brokers = brokers
        self.settings = settings
        self._markers = Markers(node_id, log, groups, brokers, clock)
        self._coordinators = Coordinators(
            log,
            clock,
            topic=TRANSACTIONS_TOPIC,
            partitions=partitions,
            make=lambda journal: TransactionCoordinator(
                journal,
                clock,
                settings,
                next_producer_id=log.next_producer_id,
                send_markers=self._markers.send,
            ),
        )
        self.verification = Verification(self.ask)
        self.end_here = self._markers.end_here
        self.start = self._coordinators.start
        self.shorten = self._coordinators.shorten
        self.unreadable = self._coordinators.unreadable

    async def close(self) -> None:
        """Answers waiting requests that the coordinator is elsewhere."""
        await self.verification.close()
        await self._coordinators.close()

    def of(self, transactional_id: str) -> TransactionCoordinator | None:
        """The coordinator of a transactional id, if it is here."""
        return self._coordinators.of(transactional_id)

    def owner_of(self, transactional_id: str) -> int:
        """The node that coordinates it. Raises `TopicUnknown` until there is one."""
        return self._coordinators.owner_of(transactional_id)

    def transactions(self) -> Iterator[tuple[str, Transaction]]:
        """Every transactional id that is coordinated here."""
        for coordinator in self._coordinators:
            yield from coordinator.transactions()

    @property
    def loading(self) -> bool:
        """Whether a journal that is here is still being read."""
        return any(not coordinator.loaded for coordinator in self._coordinators)

    async def ask(self, request: Admit) -> int:
        """Asks the coordinator, wherever it is, whether a partition is part of a transaction.

        Returns the number of the transaction. Raises `ProducerFenced`, `TransactionRefused`,
        `TransactionBusy`, `NotOwner` or `Unavailable`.
        """
        if not (
            request.producer_id >= 0
            and request.epoch >= 0
            and 0 < len(request.transactional_id) <= ID_CHARACTERS_MAX
        ):
            raise InvalidInput("a transactional id, a producer id and an epoch are needed")
        owner = self.owner_of(request.transactional_id)
        if owner == self._node_id:
            return await self.admit(request)
        return await self._brokers.admit(owner, request)

    async def admit(self, request: Admit) -> int:
        """As `ask`, of the coordinator that is here."""
        coordinator = self.of(request.transactional_id)
        if coordinator is None:
            raise NotOwner(
                f"transactional id {request.transactional_id!r} is coordinated elsewhere"
            )
        who = Identity(request.producer_id, request.epoch)
        place = Place(request.topic, request.number)
        found: int | TransactionError
        if request.adds:
            found = await coordinator.add(request.transactional_id, who, [place])
        else:
            found = coordinator.verify(request.transactional_id, who, place)
        if isinstance(found, TransactionError):
            raise raised(found, request.transactional_id)
        return found
