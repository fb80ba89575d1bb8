"""One transactional id: its producer, its epoch, and its current transaction; pure.

    EMPTY            a producer, and no transaction yet          add → ONGOING
    ONGOING          partitions are written                      end, fence → PREPARE_…
    PREPARE_COMMIT   decided; markers are on their way           complete → COMPLETE_COMMIT
    PREPARE_ABORT    decided; markers are on their way           complete → COMPLETE_ABORT
    COMPLETE_…       every partition has its marker              add → ONGOING, begin → EMPTY
    DEAD             unused for long; leaves the journal         begin → EMPTY, as a new one

Each function takes the known state and returns the next, the same object if nothing changes, or the
error. The caller stores the next state before it answers, and proceeds only from there.

Epochs. `begin` gives the next epoch, so an older producer of the same name is fenced. With KIP-890
(`bumps`) every end gives the next one too: a late request of the last transaction can then be
distinguished from one of this transaction. A producer that lost an answer repeats its request under
the epoch it knows, which is the one before (`epoch_before`), and gets the same answer again. So
does one whose transaction took too long (KIP-588): it cannot commit, and goes on under the next
epoch unless another has begun meanwhile. The last epoch is kept for fencing; a producer that
reaches it gets a new id.
"""

from collections.abc import Iterable

import msgspec

from dovetail.log.transactions.types import Identity, Place, TransactionError, TransactionState
from dovetail.record_batch import Marker

#: Epochs are 16 bits. The highest is for fencing alone.
EPOCH_LAST = 2**15 - 2

NOBODY = -1


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """What the journal has of a transactional id."""

    producer_id: int
    epoch: int
    state: TransactionState
    timeout_ms: int
    updated_ms: int
    #: Which transaction of this id it is; grows by one with each.
    number: int = 0
    partitions: tuple[Place, ...] = ()
    started_ms: int = -1
    #: Under what the producer may repeat its last request.
    epoch_before: int = NOBODY
    producer_before: int = NOBODY
    #: The id after the end, if the epochs of this one are used up.
    producer_next: int = NOBODY

    @property
    def identity(self) -> Identity:
        """Who the producer is now, or will be when what is decided is done."""
        if self.producer_next != NOBODY:
            return Identity(self.producer_next, 0)
        return Identity(self.producer_id, self.epoch)

    @property
    def prepared(self) -> bool:
        """Whether its end is decided and not everywhere yet."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    def marker(self, coordinator_epoch: int) -> Marker:
        """What ends it in each of its partitions."""
        commit = self.state is TransactionState.PREPARE_COMMIT
        return Marker(self.producer_id, self.epoch, commit, coordinator_epoch, self.number)


Decided = Transaction | TransactionError

_RESTING = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
)


def _next(known: Transaction, **changes: object) -> Transaction:
    changed: Transaction = msgspec.structs.replace(known, **changes)
    return changed


def needs_id(known: Transaction | None) -> bool:
    """Whether `begin` and `end` need a producer id that nobody has."""
    if known is None or known.state is TransactionState.DEAD:
        return True
    return known.epoch >= EPOCH_LAST


def begin(
    known: Transaction | None,
    *,
    fresh_id: int,
    timeout_ms: int,
    expected: Identity | None,
    now_ms: int,
) -> Decided:
    """A producer starts under this name, or goes on after an error (`expected`, KIP-360).

    An open transaction is decided to be aborted first; ask again when that is done.
    """
    if known is None or known.state is TransactionState.DEAD:
        number = 0 if known is None else known.number
        state = TransactionState.EMPTY
        return Transaction(fresh_id, 0, state, timeout_ms, now_ms, number=number)
    if expected is not None and not _may_begin(known, expected):
        return TransactionError.FENCED
    if known.prepared:
        return TransactionError.BUSY
    if known.state is TransactionState.ONGOING:
        # The producer itself goes on with the epoch of that abort; another one never hears of it.
        before = NOBODY if expected is None else known.epoch
        return fence(known, now_ms=now_ms, epoch_before=before)

    if expected is not None and expected.epoch != known.epoch <= EPOCH_LAST:
        return known  # It was aborted above, or only the answer to the request before was lost.
    used_up = known.epoch >= EPOCH_LAST
    if used_up and fresh_id == NOBODY:
        return TransactionError.BUSY
    return _next(
        known,
        producer_id=fresh_id if used_up else known.producer_id,
        epoch=0 if used_up else known.epoch + 1,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        partitions=(),
        started_ms=-1,
        epoch_before=NOBODY if expected is None else known.epoch,
        producer_before=known.producer_id if used_up else NOBODY,
    )


def _may_begin(known: Transaction, expected: Identity) -> bool:
    if expected == known.identity:
        return True
    if known.state is TransactionState.ONGOING or known.epoch_before == NOBODY:
        return False
    before = known.producer_id if known.producer_before == NOBODY else known.producer_before
    return expected == (before, known.epoch_before)


def add(
    known: Transaction | None, who: Identity, partitions: Iterable[Place], *, now_ms: int
) -> Decided:
    """Partitions join the transaction; the first ones begin it."""
    refused = _refusal(known, who)
    if known is None or refused is not None:
        return refused or TransactionError.MAPPING
    if known.prepared:
        return TransactionError.BUSY
    if known.state is TransactionState.ONGOING:
        has = frozenset(known.partitions)
        missing = tuple(dict.fromkeys(p for p in partitions if p not in has))
        if not missing:
            return known
        return _next(known, partitions=known.partitions + missing, updated_ms=now_ms)

    return _next(
        known,
        state=TransactionState.ONGOING,
        number=known.number + 1,
        partitions=tuple(dict.fromkeys(partitions)),
        started_ms=now_ms,
        updated_ms=now_ms,
    )


def verify(known: Transaction | None, who: Identity, partition: Place) -> Decided:
    """Whether a partition is part of the transaction, which goes on."""
    refused = _refusal(known, who)
    if known is None or refused is not None:
        return refused or TransactionError.MAPPING
    if known.prepared:
        return TransactionError.BUSY
    if known.state is not TransactionState.ONGOING or partition not in known.partitions:
        return TransactionError.NOT_PART
    return known


def _refusal(known: Transaction | None, who: Identity) -> TransactionError | None:
    if known is None or known.state is TransactionState.DEAD:
        return TransactionError.MAPPING
    if known.producer_next != NOBODY and who == known.identity:
        return TransactionError.BUSY  # It has the answer; its last transaction is being ended.
    if known.producer_id != who.producer_id:
        return TransactionError.MAPPING
    if who.epoch > EPOCH_LAST:  # Nobody was given it.
        return TransactionError.FENCED
    return None if known.epoch == who.epoch else TransactionError.FENCED


def end(
    known: Transaction | None,
    who: Identity,
    *,
    commit: bool,
    bumps: bool,
    fresh_id: int,
    now_ms: int,
) -> Decided:
    """The producer wants the end. Its repeated request is answered like the first."""
    if known is None or known.state is TransactionState.DEAD:
        return TransactionError.MAPPING
    if _repeats(known, who, bumps=bumps):
        same = known.state in (
            (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            if commit
            else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        )
        if known.identity.epoch > EPOCH_LAST:
            return TransactionError.FENCED
        return known if same else TransactionError.INVALID_STATE
    refused = _refusal(known, who)
    if refused is not None:
        return refused
    if known.prepared or (bumps and needs_id(known) and fresh_id == NOBODY):
        return TransactionError.BUSY

    if known.state is TransactionState.ONGOING:
        to = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        ended = _next(known, state=to, updated_ms=now_ms)
        return _bumped(ended, fresh_id) if bumps else ended
    if bumps and not commit and known.state in _RESTING:
        # Nothing was written. The epoch is bumped all the same: the client counts on it.
        empty = _next(known, state=TransactionState.PREPARE_ABORT, partitions=(), updated_ms=now_ms)
        return _bumped(empty, fresh_id)
    return TransactionError.INVALID_STATE


def _repeats(known: Transaction, who: Identity, *, bumps: bool) -> bool:
    if known.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    if not bumps:
        return who == (known.producer_id, known.epoch)
    before = known.producer_id if known.producer_before == NOBODY else known.producer_before
    return who == (before, known.epoch_before)


def _bumped(ended: Transaction, fresh_id: int) -> Transaction:
    return _next(
        ended,
        epoch=ended.epoch + 1,
        epoch_before=ended.epoch,
        producer_before=NOBODY,
        producer_next=fresh_id if ended.epoch >= EPOCH_LAST else NOBODY,
    )


def fence(known: Transaction, *, now_ms: int, epoch_before: int = NOBODY) -> Transaction:
    """An open transaction is to be aborted, and its epoch fenced: another producer begins, or the
    same one anew (`epoch_before`)."""
    return _next(
        known,
        state=TransactionState.PREPARE_ABORT,
        epoch=known.epoch + 1,
        epoch_before=epoch_before,
        producer_before=NOBODY,
        updated_ms=now_ms,
    )


def time_out(known: Transaction, *, now_ms: int) -> Transaction:
    """An open transaction took too long, and is to be aborted; its producer can begin anew."""
    return fence(known, now_ms=now_ms, epoch_before=known.epoch)


def complete(known: Transaction, *, now_ms: int) -> Transaction:
    """Every partition has its marker."""
    commit = known.state is TransactionState.PREPARE_COMMIT
    moved = known.producer_next != NOBODY
    return _next(
        known,
        state=TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
        partitions=(),
        updated_ms=now_ms,
        producer_id=known.producer_next if moved else known.producer_id,
        epoch=0 if moved else known.epoch,
        producer_before=known.producer_id if moved else known.producer_before,
        producer_next=NOBODY,
    )


def expire(known: Transaction, *, after_ms: int, now_ms: int) -> Transaction:
    """Dead, if it was not used for so long and nothing is open."""
    if known.state in _RESTING and known.updated_ms + after_ms <= now_ms:
        return _next(known, state=TransactionState.DEAD)
    return known
