"""Idempotent producers: a batch that is sent twice is stored once (K4).

A producer numbers its records per partition. The partition remembers, for each producer, the
epoch and the last five batches (a client keeps at most five in flight):

    epoch lower than known                         ProducerFenced
    batch is one of the last five                  duplicate: answered with its old offset
    first sequence follows the last one            new (in a higher epoch 0 follows)
    ahead, and nothing heard of it under this term Unavailable, for a while
    producer not known (expired, or trimmed)       new
    otherwise                                      SequenceGap

Why who is ahead has to wait: a client has some batches on their way. The first can reach a new
owner a moment before it serves, and be refused; the second a moment after, when it is a gap. To a
gap librdkafka begins a new epoch *on all partitions*, and sends what it had no answer for under new
numbers: what a former owner of another partition has stored meanwhile would be stored twice. Told
to try again, it sends all in order, under the old numbers.

The table is a function of the log: it is rebuilt from the last checkpoint and the batches behind
it, so it holds across restarts and changes of owner.
"""

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from dovetail.errors import ProducerFenced, SequenceGap, Unavailable
from dovetail.record_batch import BatchHeader

#: As many as a client may have in flight.
BATCHES_KEPT = 5

#: Producers remembered per partition; the one longest silent goes first. 50 bytes each on disk.
PRODUCERS_MAX = 10_000

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


class ProducerTable:
    """The producers of one partition."""

    def __init__(self, producers: dict[int, Producer] | None = None) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict(producers or {})
        #: Producers who have stored something under this term, and until when that matters.
        self._heard: set[int] = set()
        self._in_order_until_ms = 0

    def begin_term(self, *, now_ms: int) -> None:
        """From here on who is ahead may have been refused what comes before."""
        self._heard.clear()
        self._in_order_until_ms = now_ms + IN_ORDER_MS

    def duplicate_of(self, header: BatchHeader, *, now_ms: int) -> int | None:
        """The offset under which this batch is stored already, or None if it is new.

        Raises `ProducerFenced`, `SequenceGap` or `Unavailable` if it must not be stored.
        """
        if header.producer_id < 0:
            return None

        known = self._producers.get(header.producer_id)
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
            expected = (known.batches[-1].sequence_last + 1) % _SEQUENCE_END

        if header.base_sequence == expected:
            return None

        gap = (
            f"producer {header.producer_id} sends sequence {header.base_sequence}, "
            f"expected {expected}"
        )
        ahead = (header.base_sequence - expected) % _SEQUENCE_END < _SEQUENCE_END // 2
        if ahead and now_ms < self._in_order_until_ms and header.producer_id not in self._heard:
            raise Unavailable(f"{gap}; the owner has changed: send again, in order")
        if known is None:
            return None
        raise SequenceGap(gap)

    def note(self, header: BatchHeader, *, now_ms: int) -> None:
        """Remembers a batch that is being stored; its base offset is set."""
        if header.producer_id < 0:
            return
        if now_ms < self._in_order_until_ms:
            self._heard.add(header.producer_id)
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = Producer(header.producer_epoch, now_ms, [])
            self._producers[header.producer_id] = known
        known.seen_ms = now_ms
        known.batches.append(
            KnownBatch(header.base_sequence, _sequence_last(header), header.base_offset)
        )
        del known.batches[:-BATCHES_KEPT]
        self._producers.move_to_end(header.producer_id)
        while len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)

    def snapshot(self, *, now_ms: int) -> dict[int, Producer]:
        """Everything worth keeping; forgets who was silent too long."""
        while self._producers:
            oldest = next(iter(self._producers))
            if now_ms - self._producers[oldest].seen_ms < EXPIRY_MS:
                break
            del self._producers[oldest]
        return dict(self._producers)


def _sequence_last(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCE_END
