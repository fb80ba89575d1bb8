"""The stored form of transactions: one record for each transactional id, the last one counts.

The first byte of each key and value gives the format of the rest, which is MessagePack.
"""

from collections.abc import AsyncIterable

import msgspec

from dovetail.errors import Damaged
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.transactions.transaction import Transaction

#: How keys and values are written; a reader refuses what it does not know.
_FORMAT = b"\x01"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Transaction)


def record_of(transactional_id: str, known: Transaction | None) -> JournalRecord:
    """Stores a transactional id, or removes it."""
    key = _FORMAT + transactional_id.encode()
    return JournalRecord(key, None if known is None else _FORMAT + _encoder.encode(known))


async def replay(records: AsyncIterable[JournalRecord]) -> dict[str, Transaction]:
    """What a journal says. Raises `Damaged` if it is unreadable."""
    found: dict[str, Transaction] = {}
    async for record in records:
        value = record.value
        if record.key[:1] != _FORMAT or (value is not None and value[:1] != _FORMAT):
            raise Damaged(f"transaction journal: a record of another format: {record.key[:64]!r}")
        try:
            transactional_id = record.key[1:].decode()
            if value is None:
                found.pop(transactional_id, None)
            else:
                found[transactional_id] = _decoder.decode(memoryview(value)[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(f"transaction journal: unreadable record: {error}") from error
    return found
