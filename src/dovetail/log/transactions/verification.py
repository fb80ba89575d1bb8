"""An owner asks the coordinator before it accepts the first batch of a transaction (KIP-890).

A late batch, after the marker of its transaction, would open one that nothing ends. So the owner of
a partition accepts the first batch of a transaction only when the coordinator confirms that the
transaction goes on and includes the partition; or, for a producer that does not name its partitions
(`adds`), when the coordinator has added it. Batches of the same producer wait behind the first, in
order.
"""

import asyncio
from collections.abc import Callable, Coroutine

from dovetail.background import Tasks
from dovetail.errors import DovetailError, NotOwner, TransactionBusy, Unavailable
from dovetail.log.open_ledger import Appended, copy_outcome
from dovetail.log.partition import Partition
from dovetail.log.transactions.calls import Admit
from dovetail.log.transactions.types import Identity, Place
from dovetail.record_batch import BatchHeader

_Waiting = list[tuple[memoryview, BatchHeader, "asyncio.Future[Appended]"]]


class Verification:
    """Appends of transactional producers."""

    def __init__(self, ask: Callable[[Admit], Coroutine[None, None, int]]) -> None:
        self._ask = ask
        self._waiting: dict[tuple[Place, Identity], _Waiting] = {}
        self._tasks = Tasks()

    async def close(self) -> None:
        """Asks no more; waiting batches are refused."""
        await self._tasks.stop()

    def append(
        self,
        partition: Partition,
        place: Place,
        batch: memoryview,
        header: BatchHeader,
        *,
        transactional_id: str,
        adds: bool,
    ) -> "asyncio.Future[Appended]":
        """As `Partition.append`, when the coordinator has said that the batch belongs there."""
        who = Identity(header.producer_id, header.producer_epoch)
        waiting = self._waiting.get((place, who))
        if waiting is None and partition.producers.is_open(*who):
            return partition.append(batch, header)

        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if waiting is not None:
            waiting.append((batch, header, future))
            return future
        self._waiting[place, who] = [(batch, header, future)]
        request = Admit(transactional_id, *who, *place, adds)
        self._tasks.start(self._admit(partition, place, who, request), name="log/transactions/ask")
        return future

    async def _admit(
        self, partition: Partition, place: Place, who: Identity, request: Admit
    ) -> None:
        refusal: DovetailError = Unavailable("this node stops")
        try:
            number = await self._ask(request)
            partition.producers.admit(*who, number)
        except (NotOwner, TransactionBusy) as error:
            # It is the coordinator that moved, not the partition: the client only tries again.
            refusal = Unavailable(str(error))
        except DovetailError as error:
            refusal = error
        else:
            for batch, header, future in self._waiting.pop((place, who)):
                _pass_on(partition.append(batch, header), future)
        finally:
            for _, _, future in self._waiting.pop((place, who), ()):
                if not future.done():
                    future.set_exception(refusal)


def _pass_on(stored: "asyncio.Future[Appended]", future: "asyncio.Future[Appended]") -> None:
    stored.add_done_callback(lambda first: copy_outcome(first, future))
