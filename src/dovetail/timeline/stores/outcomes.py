"""What the SQL stores share: outcomes of commands, rows as messages, names of batches."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from dovetail.timeline.message import Handle, Inserted, MessageId, Shown, State, Status

#: Names that are kept of the batches that a producer is done with: a request of it may be late.
BATCHES_KEPT: Final = 64

#: Written with a dead letter whose last holder never answered.
REASON_ENDED: Final = "the lease ended without an answer"

#: Written with one that was due too long ago.
REASON_LATE: Final = "its time to live ended"

#: For a schedule that is put again. One with the same times goes on where it is: begun anew, it
#: would fire again what it has fired, or never if it is put more often than it fires.
PUT_AGAIN: Final = """
ON CONFLICT (name) DO UPDATE SET body = excluded.body, headers = excluded.headers,
    priority = excluded.priority, cron = excluded.cron, zone = excluded.zone,
    every = excluded.every,
    next = CASE WHEN (held.cron, held.zone, held.every)
        = (excluded.cron, excluded.zone, excluded.every) THEN held.next ELSE excluded.next END,
    start = CASE WHEN (held.cron, held.zone, held.every)
        = (excluded.cron, excluded.zone, excluded.every) THEN held.start ELSE excluded.start END
"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, int, list[tuple[int, Inserted]]])


def reason_of_death(due_ms: int, ttl_ms: int, now_ms: int) -> str:
    """Why a message is a dead letter that nobody rejected."""
    return REASON_LATE if ttl_ms and due_ms + ttl_ms <= now_ms else REASON_ENDED


def status_of_miss(handle: Handle, done: Set[Handle], versions: Mapping[int, int]) -> Status:
    """OK if it was done, else why not: `versions` holds those messages that are still there."""
    if handle in done:
        return Status.OK
    return Status.STALE if handle.id in versions else Status.GONE


def status_of_unheld(identity: MessageId, done: Set[int], there: Mapping[int, int]) -> Status:
    """OK if it was done, else why not: `there` holds those messages that are still there."""
    if identity in done:
        return Status.OK
    return Status.LEASED if identity in there else Status.GONE


def once(ids: Iterable[MessageId], done: Set[int]) -> list[Status]:
    """OK for the first mention of each that was done, gone for the others."""
    left = set(done)
    statuses = []
    for identity in ids:
        statuses.append(Status.OK if identity in left else Status.GONE)
        left.discard(identity)
    return statuses


def shown_of(rows: Iterable[Any], now_ms: int) -> list[Shown]:
    """Messages as they are shown: id, version, holder, the rest in the order of `Shown`, and the
    order key."""
    found = []
    for identity, version, holder, *rest, order_key in rows:
        visible_ms = rest[1]
        state = State.DUE
        if visible_ms > now_ms:
            state = State.WAITING if holder is None else State.LEASED
        values: tuple[Any, ...] = (identity, version, state, *rest, holder, "", 0, order_key)
        found.append(Shown(*values))
    return found


def dead_of(rows: Iterable[Any]) -> list[Shown]:
    """Dead letters as they are shown: id, version, reason, died, the rest, and the order key."""
    found = []
    for identity, version, reason, died_ms, *rest, order_key in rows:
        ends: tuple[Any, ...] = (None, reason, died_ms, order_key)
        found.append(Shown(identity, version, State.DEAD, *rest, *ends))
    return found


def merged(stored: Sequence[Inserted], refused: Mapping[int, Status] | None) -> list[Inserted]:
    """The outcomes of a batch: of what was stored, in order, and of what was refused."""
    if not refused:
        return list(stored)
    left, count = iter(stored), len(stored) + len(refused)
    return [
        Inserted(refused[at], MessageId(0)) if at in refused else next(left) for at in range(count)
    ]


def encode_outcomes(outcomes: list[Inserted]) -> bytes:
    """As few bytes as possible: ids in a row are their first and their number."""
    first = next((item.id - at for at, item in enumerate(outcomes) if item.status == Status.OK), 0)
    exceptions = [
        (at, item)
        for at, item in enumerate(outcomes)
        if item.status != Status.OK or item.id != first + at
    ]
    return _encoder.encode((first, len(outcomes), exceptions))


def decode_outcomes(data: bytes) -> list[Inserted]:
    """The outcomes again."""
    first, count, exceptions = _decoder.decode(data)
    outcomes = [Inserted(Status.OK, MessageId(first + at)) for at in range(count)]
    for at, item in exceptions:
        outcomes[at] = item
    return outcomes
