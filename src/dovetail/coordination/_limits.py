"""The limits that every implementation enforces first; their numbers are in `protocol`."""

from collections.abc import Sequence

from dovetail.coordination import protocol
from dovetail.coordination.protocol import Change, Put, Unchanged
from dovetail.errors import InvalidInput


def check_transaction(changes: Sequence[Change], conditions: Sequence[Unchanged]) -> None:
    """Raises `InvalidInput` if the transaction is malformed or passes a limit."""
    for what, count in (("changes", len(changes)), ("conditions", len(conditions))):
        if count > protocol.TRANSACTION_CHANGES_MAX:
            raise InvalidInput(
                f"a transaction has at most {protocol.TRANSACTION_CHANGES_MAX} {what}, "
                f"this one has {count}"
            )

    transaction_bytes = sum(check_key(condition.key) for condition in conditions)
    named: set[str] = set()
    for change in changes:
        transaction_bytes += check_key(change.key)
        if change.key in named:
            raise InvalidInput(f"two changes of one transaction name the key {change.key!r}")
        named.add(change.key)
        if isinstance(change, Put):
            _check_value(change)
            transaction_bytes += len(change.value)

    if transaction_bytes > protocol.TRANSACTION_BYTES_MAX:
        raise InvalidInput(
            f"a transaction has at most {protocol.TRANSACTION_BYTES_MAX} bytes of keys and values, "
            f"this one has {transaction_bytes}"
        )


def check_key(key: str) -> int:
    """The bytes of the key. Raises `InvalidInput` if it is empty, too long, or no text."""
    if not key:
        raise InvalidInput("a key must not be empty")
    return check_prefix(key)


def check_prefix(prefix: str) -> int:
    """The bytes of the prefix, which may be empty. Raises `InvalidInput` like `check_key`."""
    try:
        prefix_bytes = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"key {prefix!r} cannot be written as UTF-8") from error
    if prefix_bytes > protocol.KEY_BYTES_MAX:
        raise InvalidInput(
            f"a key has at most {protocol.KEY_BYTES_MAX} bytes, the one that begins with "
            f"{prefix[:64]!r} has {prefix_bytes}"
        )
    return prefix_bytes


def check_ttl(ttl_ms: int) -> None:
    """Raises `InvalidInput` if no lease can have this time."""
    if not 0 < ttl_ms <= protocol.LEASE_TTL_MS_MAX:
        raise InvalidInput(f"a lease of {ttl_ms} ms is outside 1 to {protocol.LEASE_TTL_MS_MAX} ms")


def _check_value(put: Put) -> None:
    if len(put.value) > protocol.VALUE_BYTES_MAX:
        raise InvalidInput(
            f"a value has at most {protocol.VALUE_BYTES_MAX} bytes, that of {put.key!r} has "
            f"{len(put.value)}"
        )
