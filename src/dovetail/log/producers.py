"""Producers of a partition: stores what is sent twice once (K4), tracks open transactions (K8).

A producer numbers its records per partition. The partition remembers, for each producer, the
epoch and the last five batches (a client keeps at most five in flight):

    epoch lower than known                         ProducerFenced
    batch is one of the last five                  duplicate: answered with its old offset
    first sequence follows the last one            new (in a higher epoch 0 follows)
    ahead, and nothing heard of it under this term Unavailable, for a while
    producer not known, its transaction of KIP-890 SequenceGap unless it is the first, 0
    producer not known (expired, or trimmed)       new
    the same, and its id is shared                 new, or Unavailable if there are too many of them
    otherwise                                      SequenceGap

Why a producer that is ahead must wait: it has several batches in flight. The first can reach a new
owner a moment before it serves, and be refused; the second a moment after, and is then a gap. On a
gap librdkafka begins a new epoch *on all partitions* and sends every unanswered batch under new
numbers: what a former owner of another partition has stored meanwhile would be stored twice. Told
to retry, it sends all in order, under the old numbers.

Transactions. The first transactional batch of a producer opens a transaction here, and a marker, a
control batch from its coordinator, ends it. Transactions of one transactional id are numbered. The
coordinator tells the number to each owner that asks before it writes (`admit`), and the marker
carries it:

    first batch of a transaction that was not admitted   Unavailable: ask the coordinator first
    admitted with a number that has ended here           TransactionRefused: the batch is late
    marker of a number that has ended here               known: answered with its old offset
    marker of an older epoch of the producer             ProducerFenced
    marker of an older term of the coordinator           Fenced

So a marker that is doubled, or arrives after the next transaction began, changes nothing, and a
batch that arrives after its marker opens no transaction that would never end. All below the first
offset of the oldest open transaction is stable; one counts as open until its marker is confirmed.

The table is a function of the log: it is rebuilt from the last checkpoint and the batches behind
it, so it survives restarts and changes of owner.

Silence is measured in wall-clock time, which outlives an owner; `snapshot` wants one that does not
jump (`UnhurriedTime`). The wait of a producer that is ahead is measured by the monotonic clock.
"""

from collections import OrderedDict, deque
from typing import NamedTuple

import msgspec

from dovetail.errors import (
    Fenced,
    ProducerFenced,
    SequenceGap,
    TransactionRefused,
    Unavailable,
)
from dovetail.record_batch import DUE_PRODUCER_ID, TRANSACTIONAL, BatchHeader, Marker

#: As many as a client may have in flight.
BATCHES_KEPT = 5

#: Producers remembered per partition; the one longest silent goes first. 50 bytes each on disk.
PRODUCERS_MAX = 10_000

#: Producer ids from here on are chosen by who writes (teams, Spark tables), and shared by all
#: attempts at one piece of work. Attempts rely on the refusal of what another one has stored.
SHARED_FROM = 1 << 62
#: So many of them are not pushed out by others, each for twice as long as an attempt that slept may
#: still write. One more that comes meanwhile is refused.
SHARED_MAX, SHARED_KEPT_MS = 5_000, 2 * 60 * 60 * 1000

#: A producer that was silent for so long starts anew. Kafka's default.
EXPIRY_MS = 24 * 60 * 60 * 1000

#: So long a producer may need to begin again in order after the owner has changed: it hears of that
#: within a second or two. Later a gap is a gap, and whoever is not known begins where it likes.
IN_ORDER_MS = 10_000

_SEQUENCE_END = 1 << 31


class KnownBatch(NamedTuple):
    """A batch that was stored."""

    sequence_first: int
    sequence_last: int
    base_offset: int


class Producer(msgspec.Struct, array_like=True):
    """What is remembered of a producer."""

    epoch: int
    seen_ms: int
    batches: list[KnownBatch]
    #: Of the last marker: the term of its coordinator, the number of the transaction, its offset.
    coordinator_epoch: int = -1
    ended: int = -1
    ended_offset: int = -1


class OpenTransaction(msgspec.Struct, array_like=True):
    """A transaction that has no marker yet."""

    first_offset: int
    epoch: int


class AbortedRange(NamedTuple):
    """An aborted transaction: from its first record to its marker.

    `stable_then` was the last stable offset behind the marker: what was not ended by then begins
    there or later.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable_then: int


class ProducerTable:
    """The producers of one partition, and their open transactions."""

    def __init__(
        self,
        producers: dict[int, Producer] | None = None,
        open_transactions: dict[int, OpenTransaction] | None = None,
    ) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict(producers or {})
        #: When shared ids were last heard, the one longest silent first.
        self._shared = OrderedDict(
            (name, known.seen_ms) for name, known in self._producers.items() if name >= SHARED_FROM
        )
        #: When the last batch was noted, by the time that producers expire by.
        self._noted_ms = max(self._shared.values(), default=0)
        #: By producer, in the order of their first offsets.
        self._open = dict(open_transactions or {})
        #: Of transactions whose marker may not be confirmed: its offset, and the first offset.
        self._ending: deque[tuple[int, int]] = deque()
        #: Producers that may begin a transaction, under which epoch, and whether at number 0.
        self._admitted: dict[int, tuple[int, bool]] = {}
        #: Producers who have stored something under this term, and until when that matters; None
        #: when it does not.
        self._heard: set[int] = set()
        self._in_order_until_ms: float | None = None
        #: Whether nobody needs the last batch of due records any more.
        self.due_settled = False

    def begin_term(self, *, now_ms: float) -> None:
        """From here on who is ahead may have been refused what comes before; monotonic time."""
        self._heard.clear()
        self._in_order_until_ms = now_ms + IN_ORDER_MS

    def duplicate_of(
        self, header: BatchHeader, *, now_ms: float, marker: Marker | None = None
    ) -> int | None:
        """The offset under which this batch is stored already, or None if it is new; `now_ms` is
        monotonic.

        Raises `ProducerFenced`, `SequenceGap`, `Fenced`, `TransactionRefused` or `Unavailable` if
        it must not be stored.
        """
        if header.producer_id < 0:
            return None
        if self._in_order_until_ms is not None and now_ms >= self._in_order_until_ms:
            self._in_order_until_ms = None
            self._heard.clear()

        known = self._producers.get(header.producer_id)
        if marker is not None:
            return None if known is None else _known_marker(known, marker)
        expected = 0
        if known is not None and header.producer_epoch < known.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"known {known.epoch}"
            )
        if known is not None and header.producer_epoch == known.epoch:
            last = _sequence_last(header)
            for batch in known.batches:
                if batch.sequence_first == header.base_sequence and batch.sequence_last == last:
                    return batch.base_offset
            if known.batches:
                expected = (known.batches[-1].sequence_last + 1) % _SEQUENCE_END

        if self._open or header.attributes & TRANSACTIONAL:
            self._check_transaction(header)
        if known is None and header.producer_id >= SHARED_FROM:
            self._check_shared()
        if header.base_sequence == expected:
            return None

        gap = (
            f"producer {header.producer_id} sends sequence {header.base_sequence}, "
            f"expected {expected}"
        )
        ahead = is_ahead(header.base_sequence, of=expected)
        if ahead and self._in_order_until_ms is not None and header.producer_id not in self._heard:
            raise Unavailable(f"{gap}; the partition's owner changed: send again, in order")
        if known is None and not self._admitted.get(header.producer_id, (0, False))[1]:
            return None
        raise SequenceGap(gap)

    def _check_shared(self) -> None:
        """Raises `Unavailable` if one more shared id would push out one that must be kept."""
        while self._shared:
            oldest, heard_ms = next(iter(self._shared.items()))
            if self._noted_ms - heard_ms < SHARED_KEPT_MS:
                break
            del self._shared[oldest]
        if len(self._shared) >= SHARED_MAX:
            raise Unavailable(
                f"{len(self._shared)} chains of teams and Spark tables write to this partition; "
                "give them more partitions or topics of their own"
            )

    def _check_transaction(self, header: BatchHeader) -> None:
        """Raises unless the batch belongs where it stands: in an open transaction, or in none."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        opened = self._open.get(producer_id)
        if not header.attributes & TRANSACTIONAL:
            if opened is not None:
                raise TransactionRefused(
                    f"producer {producer_id} sent a batch outside its open transaction"
                )
        elif epoch != (self._admitted_under(producer_id) if opened is None else opened.epoch):
            raise Unavailable(
                f"producer {producer_id}, epoch {epoch}: the coordinator must verify its "
                "transaction first"
            )

    def note(
        self, header: BatchHeader, *, now_ms: int, marker: Marker | None = None
    ) -> AbortedRange | None:
        """Remembers a batch that is being stored; its base offset is set.

        Returns what it aborts, if it does.
        """
        if header.producer_id < 0:
            return None
        if self._in_order_until_ms is not None:
            self._heard.add(header.producer_id)
        self._noted_ms = now_ms
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            ended = known or Producer(-1, 0, [])
            known = Producer(
                header.producer_epoch,
                now_ms,
                [],
                ended.coordinator_epoch,
                ended.ended,
                ended.ended_offset,
            )
            self._producers[header.producer_id] = known

        known.seen_ms = now_ms
        self._producers.move_to_end(header.producer_id)
        if header.producer_id >= SHARED_FROM:
            self._shared[header.producer_id] = now_ms
            self._shared.move_to_end(header.producer_id)
        while len(self._producers) > PRODUCERS_MAX:
            self._forget_oldest(now_ms)
        if marker is not None:
            return self._note_marker(known, header, marker)

        known.batches.append(
            KnownBatch(header.base_sequence, _sequence_last(header), header.base_offset)
        )
        del known.batches[:-BATCHES_KEPT]
        if header.attributes & TRANSACTIONAL and header.producer_id not in self._open:
            self._admitted.pop(header.producer_id, None)
            opened = OpenTransaction(header.base_offset, header.producer_epoch)
            self._open[header.producer_id] = opened
        return None

    def _note_marker(
        self, known: Producer, header: BatchHeader, marker: Marker
    ) -> AbortedRange | None:
        known.coordinator_epoch = marker.coordinator_epoch
        known.ended = max(known.ended, marker.number)
        known.ended_offset = header.base_offset
        self._admitted.pop(header.producer_id, None)
        opened = self._open.pop(header.producer_id, None)
        if opened is None:
            return None
        self._ending.append((header.base_offset, opened.first_offset))
        if marker.commit:
            return None
        stable = header.offset_end if self.lowest_open is None else self.lowest_open
        return AbortedRange(header.producer_id, opened.first_offset, header.base_offset, stable)

    def _forget_oldest(self, now_ms: int) -> None:
        """Forgets the producer silent longest; one that must be kept counts as heard."""
        oldest, known = self._producers.popitem(last=False)
        shared_ms = self._shared.get(oldest)
        kept = shared_ms is not None and now_ms - shared_ms < SHARED_KEPT_MS
        opened = oldest in self._open and len(self._open) + len(self._shared) < PRODUCERS_MAX
        if opened or (kept and len(self._shared) < PRODUCERS_MAX):
            known.seen_ms = now_ms
            self._producers[oldest] = known
        else:
            self._shared.pop(oldest, None)

    # Transactions

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open here, without asking the coordinator."""
        opened = self._open.get(producer_id)
        return opened is not None and opened.epoch == epoch

    def _admitted_under(self, producer_id: int) -> int | None:
        epoch, _ = self._admitted.get(producer_id, (None, False))
        return epoch

    def admit(self, producer_id: int, epoch: int, number: int, *, from_zero: bool = False) -> None:
        """The coordinator says that this transaction goes on; its first batch may come.

        `from_zero`: it has an epoch of its own (KIP-890), so its first sequence number is 0.

        Raises `TransactionRefused` if it has ended here meanwhile.
        """
        known = self._producers.get(producer_id)
        if known is not None and known.ended >= number:
            raise TransactionRefused(
                f"transaction {number} of producer {producer_id} has ended; the last one is "
                f"{known.ended}"
            )
        self._admitted[producer_id] = (epoch, from_zero)

    @property
    def lowest_open(self) -> int | None:
        """The first offset of the oldest open transaction."""
        for opened in self._open.values():
            return opened.first_offset
        return None

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset, if everything below `high_watermark` is confirmed."""
        if not self._open and not self._ending:
            return high_watermark
        while self._ending and self._ending[0][0] < high_watermark:
            self._ending.popleft()
        stable = min([high_watermark, *(first for _, first in self._ending)])
        return stable if self.lowest_open is None else min(stable, self.lowest_open)

    def held_from(self, below: int) -> int:
        """What may be compacted: all below `below`, but not the last batch of due records.

        By what it names, a new owner knows what of their timeline is in the log (node/due), which
        says when that is settled.
        """
        last = self._producers.get(DUE_PRODUCER_ID)
        if self.due_settled or last is None or not last.batches:
            return below
        return min(below, last.batches[-1].base_offset)

    def known(self) -> dict[int, Producer]:
        """Every producer, the one longest silent first."""
        return dict(self._producers)

    def open_transactions(self) -> dict[int, OpenTransaction]:
        """What is open, by producer."""
        return dict(self._open)

    def snapshot(self, *, now_ms: int) -> dict[int, Producer]:
        """Everything worth keeping; forgets who was silent too long."""
        while self._producers:
            oldest = next(iter(self._producers))
            if now_ms - self._producers[oldest].seen_ms < EXPIRY_MS:
                break
            self._forget_oldest(now_ms)
        return dict(self._producers)


def _known_marker(known: Producer, marker: Marker) -> int | None:
    """Where a marker is stored already, or None; raises if its sender decides nothing any more."""
    if 0 <= marker.number <= known.ended:
        return known.ended_offset
    if marker.producer_epoch < known.epoch:
        raise ProducerFenced(
            f"a marker for producer {marker.producer_id}, epoch {marker.producer_epoch}; known is "
            f"{known.epoch}"
        )
    if marker.coordinator_epoch < known.coordinator_epoch:
        raise Fenced(
            f"a marker of a coordinator under term {marker.coordinator_epoch}; known is "
            f"{known.coordinator_epoch}"
        )
    return None


def is_ahead(sequence: int, *, of: int) -> bool:
    """Whether a sequence number comes later; they begin again at 2^31."""
    return 0 < (sequence - of) % _SEQUENCE_END < _SEQUENCE_END // 2


def _sequence_last(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCE_END
