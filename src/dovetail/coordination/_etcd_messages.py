"""Translates between the types of `protocol` and the messages of etcd; pure.

All keys lie below a namespace, which is prepended to each key and removed again, so that several
installations can share one etcd. Values, revisions and lease ids are the same on both sides.
"""

from collections.abc import Sequence
from typing import Any

from aetcd import rpc

from dovetail.coordination.protocol import (
    Change,
    KeyValue,
    LeaseId,
    Put,
    Revision,
    Unchanged,
    WatchEvent,
)

#: Keys in one answer to a range. Small keys: about 100 KiB; the largest values: a gigabyte, which
#: no sensible installation has.
RANGE_PAGE_KEYS_MAX = 1000

_DELETED = 1  # Event.EventType.DELETE


class Messages:
    """Makes requests and reads answers, for one namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace.encode()

    def get(self, key: str) -> Any:
        return rpc.RangeRequest(key=self._key(key))

    def revision(self) -> Any:
        """A read that answers with the current revision and no keys."""
        return rpc.RangeRequest(key=self._namespace, count_only=True)

    def page(self, prefix: str, *, behind: bytes | None, revision: Revision | None) -> Any:
        """A page of a range: from its begin, or the one behind a key, as of the same revision."""
        begin = self._key(prefix)
        return rpc.RangeRequest(
            key=begin if behind is None else behind + b"\0",
            range_end=_end_of(begin),
            limit=RANGE_PAGE_KEYS_MAX,
            revision=0 if revision is None else revision,
        )

    def transaction(self, changes: Sequence[Change], conditions: Sequence[Unchanged]) -> Any:
        return rpc.TxnRequest(
            compare=[
                rpc.Compare(
                    result=rpc.Compare.EQUAL,
                    target=rpc.Compare.MOD,
                    key=self._key(condition.key),
                    mod_revision=condition.revision,
                )
                for condition in conditions
            ],
            success=[self._operation(change) for change in changes],
        )

    def grant(self, *, ttl_ms: int) -> Any:
        """A lease of whole seconds, never shorter than asked for."""
        return rpc.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))

    def keep_alive(self, lease: LeaseId) -> Any:
        return rpc.LeaseKeepAliveRequest(ID=lease)

    def revoke(self, lease: LeaseId) -> Any:
        return rpc.LeaseRevokeRequest(ID=lease)

    def watch(self, prefix: str, *, after: Revision) -> Any:
        begin = self._key(prefix)
        return rpc.WatchRequest(
            create_request=rpc.WatchCreateRequest(
                key=begin,
                range_end=_end_of(begin),
                start_revision=after + 1,
                progress_notify=True,
                fragment=True,
            )
        )

    def item(self, found: Any) -> KeyValue:
        return KeyValue(
            key=self._name(found.key),
            value=found.value,
            revision=Revision(found.mod_revision),
            created=Revision(found.create_revision),
            lease=LeaseId(found.lease) if found.lease else None,
        )

    def event(self, event: Any) -> WatchEvent:
        return WatchEvent(
            key=self._name(event.kv.key),
            value=None if event.type == _DELETED else event.kv.value,
            revision=Revision(event.kv.mod_revision),
        )

    def _operation(self, change: Change) -> Any:
        key = self._key(change.key)
        if isinstance(change, Put):
            put = rpc.PutRequest(key=key, value=change.value, lease=change.lease or 0)
            return rpc.RequestOp(request_put=put)
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))

    def _key(self, name: str) -> bytes:
        return self._namespace + name.encode()

    def _name(self, key: bytes) -> str:
        # A key that somebody else put here need not be text; it stays distinct from all others.
        return key[len(self._namespace) :].decode(errors="surrogateescape")


def _end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`: UTF-8, so its last byte is below 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
