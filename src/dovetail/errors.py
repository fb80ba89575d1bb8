"""Every error that Dovetail raises, in one tree.

    DovetailError
    ├── InvalidInput               the caller must change what it sends
    │   ├── InvalidSetting         a setting that is unknown, or a value that does not fit
    │   ├── ProtocolViolation      bytes that are no request
    │   ├── InvalidBatch           a record batch that is malformed
    │   │   ├── ChecksumMismatch   a record batch that changed on its way
    │   │   ├── BatchTooLarge      a record batch above the topic's limit
    │   │   └── InvalidTimestamp   a record of a time that the topic does not accept
    │   ├── OffsetOutOfRange       a position that the partition does not hold
    │   └── PolicyViolation        what the topic's settings rule out
    ├── NotFound                   it does not exist, or not any more
    │   ├── TopicUnknown
    │   │   └── TopicIdUnknown     also if another topic has the name now
    │   ├── LedgerUnknown
    │   └── EntryUnknown
    ├── Exists                     the name is taken
    │   └── TopicExists
    ├── Forbidden                  the caller may not do that
    ├── Refused                    the store decided against the caller
    │   ├── Fenced                 an older term writes
    │   ├── EntryConflict          another entry has this id
    │   ├── SequenceGap            an idempotent producer skipped a batch
    │   ├── ProducerFenced         an older producer epoch writes
    │   └── TransactionRefused     it is not part of a transaction that goes on
    │       └── TransactionMapping   the transactional id belongs to another producer
    ├── Unavailable                try again later                              (retriable)
    │   ├── DiskFull
    │   ├── TooFewCopies           a record would have fewer copies than the topic demands
    │   ├── StorageOut             the storage node took itself out
    │   ├── CoordinationDown
    │   ├── LeaseLost
    │   ├── WatchGap               the watch fell behind; read again, then watch
    │   ├── NotOwner               another node owns the partition now
    │   ├── TransactionBusy        the transaction before it is still being ended
    │   ├── Unreachable            no node answers at the address
    │   └── Throttled              a limit is reached
    ├── Uncertain                  it may or may not have happened              (retriable)
    └── Damaged                    what is on disk is not what was written

`retriable` says whether the same call can succeed later without any change by the caller.
A message says what happened, with the values, and what to do where that is not plain.
"""

from typing import ClassVar


class DovetailError(Exception):
    """Root of everything that Dovetail raises on purpose."""

    retriable: ClassVar[bool] = False


class InvalidInput(DovetailError):
    """The caller must change what it sends."""


class InvalidSetting(InvalidInput):
    """A setting that is unknown, or a value that does not fit."""


class ProtocolViolation(InvalidInput):
    """Bytes that are no request."""


class InvalidBatch(InvalidInput):
    """A record batch that is malformed."""


class ChecksumMismatch(InvalidBatch):
    """A record batch that changed on its way."""


class BatchTooLarge(InvalidBatch):
    """A record batch above the topic's limit."""


class InvalidTimestamp(InvalidBatch):
    """A record of a time that the topic does not accept."""


class OffsetOutOfRange(InvalidInput):
    """A position that the partition does not hold."""


class PolicyViolation(InvalidInput):
    """What the topic's settings rule out."""


class NotFound(DovetailError):
    """It does not exist, or not any more."""


class TopicUnknown(NotFound):
    """No such topic or partition."""


class TopicIdUnknown(TopicUnknown):
    """No topic has this id: it was deleted, and another may have its name now."""


class LedgerUnknown(NotFound):
    """No such ledger on this storage node."""


class EntryUnknown(NotFound):
    """No such entry in the ledger."""


class Exists(DovetailError):
    """The name is taken."""


class TopicExists(Exists):
    """A topic of this name exists, or is still being deleted."""


class Forbidden(DovetailError):
    """The caller may not do that."""

    def __init__(self, message: str, *, kind: str = "topic") -> None:
        super().__init__(message)
        #: What it is about: topic, group or cluster.
        self.kind = kind


class Refused(DovetailError):
    """The store decided against the caller."""


class Fenced(Refused):
    """An older term writes."""


class EntryConflict(Refused):
    """Another entry has this id."""


class SequenceGap(Refused):
    """An idempotent producer skipped a batch."""


class ProducerFenced(Refused):
    """An older producer epoch writes."""


class TransactionRefused(Refused):
    """It is not part of a transaction that goes on."""


class TransactionMapping(TransactionRefused):
    """The transactional id belongs to another producer."""


class Unavailable(DovetailError):
    """Try again later."""

    retriable = True


class DiskFull(Unavailable):
    """No room on the disk; nothing was stored."""


class TooFewCopies(Unavailable):
    """A record would have fewer copies than the topic demands."""


class StorageOut(Unavailable):
    """The storage node took itself out after a failed sync."""


class CoordinationDown(Unavailable):
    """The coordination service does not answer."""


class LeaseLost(Unavailable):
    """The lease ended before the work was done."""


class WatchGap(Unavailable):
    """The watch fell behind what is kept; read the range again, then watch from there."""


class NotOwner(Unavailable):
    """Another node owns the partition now."""


class TransactionBusy(Unavailable):
    """The transaction before it is still being ended."""


class Unreachable(Unavailable):
    """No node answers at the address."""


class Throttled(Unavailable):
    """A limit is reached."""


class Uncertain(DovetailError):
    """It may or may not have happened; repeat it if repeating is safe."""

    retriable = True


class Damaged(DovetailError):
    """What is on disk is not what was written."""
