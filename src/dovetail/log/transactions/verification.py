"""An owner asks the coordinator before it accepts the first batch of a transaction (KIP-890).

A late batch, after the marker of its transaction, would open one that nothing ends. So the owner of
a partition accepts the first batch of a transaction only when the coordinator confirms that the
transaction goes on and includes the partition; or, for a producer that does not name its partitions
(`adds`), when the coordinator has added it. Batches of the same producer wait behind the first, in
order.

A first batch that is told to come again keeps its place: what follows it is told the same until it
has come, for `BEGIN_AGAIN_S`. Where nothing is known of the producer, a later one would else open
the transaction in its place, and the first would be a gap, which ends the transaction.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine

from dovetail.background import Tasks
from dovetail.errors import DovetailError, NotOwner, TransactionBusy, Unavailable
from dovetail.log.open_ledger import Appended, copy_outcome
from dovetail.log.partition import Partition
from dovetail.log.producers import is_ahead
from dovetail.log.transactions.calls import Admit
from dovetail.log.transactions.types import Identity, Place
from dovetail.record_batch import BatchHeader

#: A client sends a refused batch again within a second or two; one that has given it up begins a
#: new epoch, or goes on behind it.
BEGIN_AGAIN_S = 10.0

#: Refused first batches that are remembered; each takes some 300 bytes.
_REFUSED_MAX = 10_000

_Producer = tuple[Place, Identity]
_Waiting = list[tuple[memoryview, BatchHeader, "asyncio.Future[Appended]"]]


class Verification:
    """Appends of transactional producers."""

    def __init__(self, ask: Callable[[Admit], Coroutine[None, None, int]]) -> None:
        self._ask = ask
        self._waiting: dict[_Producer, _Waiting] = {}
        #: Sequence numbers of first batches that are to come again, and until when; in this order.
        self._refused: OrderedDict[_Producer, tuple[int, float]] = OrderedDict()
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
        missing = self._missing(place, who)
        if missing is not None and is_ahead(header.base_sequence, of=missing):
            future.set_exception(
                Unavailable(
                    f"producer {who.producer_id}, epoch {who.epoch}: sequence {missing} has to "
                    f"come again before {header.base_sequence}"
                )
            )
            return future
        self._waiting[place, who] = [(batch, header, future)]
        request = Admit(transactional_id, *who, *place, adds)
        self._tasks.start(self._admit(partition, place, who, request), name="log/transactions/ask")
        return future

    async def _admit(
        self, partition: Partition, place: Place, who: Identity, request: Admit
    ) -> None:
        first = self._waiting[place, who][0][1].base_sequence
        refusal: DovetailError = Unavailable("this node stops")
        try:
            number = await self._ask(request)
            partition.producers.admit(*who, number, from_zero=request.adds)
        except (NotOwner, TransactionBusy) as error:
            # It is the coordinator that moved, not the partition: the client only tries again.
            refusal = Unavailable(str(error))
            self._note_refused(place, who, first)
        except DovetailError as error:
            refusal = error
            if error.retriable:
                self._note_refused(place, who, first)
        else:
            self._refused.pop((place, who), None)
            for batch, header, future in self._waiting.pop((place, who)):
                _pass_on(partition.append(batch, header), future)
        finally:
            for _, _, future in self._waiting.pop((place, who), ()):
                if not future.done():
                    future.set_exception(refusal)

    def _missing(self, place: Place, who: Identity) -> int | None:
        """The sequence number that the producer has to begin with, if it was told to come again."""
        sequence, until_s = self._refused.get((place, who), (0, 0.0))
        return sequence if asyncio.get_running_loop().time() < until_s else None

    def _note_refused(self, place: Place, who: Identity, first: int) -> None:
        until_s = asyncio.get_running_loop().time() + BEGIN_AGAIN_S
        self._refused[place, who] = (first, until_s)
        self._refused.move_to_end((place, who))
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)


def _pass_on(stored: "asyncio.Future[Appended]", future: "asyncio.Future[Appended]") -> None:
    stored.add_done_callback(lambda first: copy_outcome(first, future))
