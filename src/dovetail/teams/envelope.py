"""A job as a record: the key is its id, the value its payload, headers hold the rest; pure.

    key      the job id, in UTF-8; equal ids share a partition, on which T4 depends. Bytes of a
             foreign key that are not UTF-8 are lone surrogates in the id (`surrogateescape`), so
             every key has its own id and comes out unchanged; one that would fill a record alone
             counts as no key
    value    the payload, in the codec of the team that reads it
    headers  dovetail-parent      the job that this one was made from (spray)
             dovetail-attempts    how often it was tried before it came here; absent: never
             dovetail-not-before  milliseconds since the epoch before which it is not due
             dovetail-since       milliseconds since the epoch at which it was postponed
             dovetail-item        `number/count/time`: one of the items of a job that are gathered
                                  until that time, in milliseconds since the epoch
             dovetail-to          on the topic of delays: the input topic that it goes to
             traceparent          as in W3C Trace Context; see `dovetail.tracing`

Headers without information are left out: a plain job costs no byte more than its key and value. A
record without a key, from a producer that knows no job ids, gets its place in the log as its id,
which is the same whenever it is read.
"""

from collections.abc import Iterable
from typing import NewType, TypeGuard

import msgspec

from dovetail.errors import InvalidInput

JobId = NewType("JobId", str)

PARENT = "dovetail-parent"
ATTEMPTS = "dovetail-attempts"
NOT_BEFORE = "dovetail-not-before"
SINCE = "dovetail-since"
ITEM = "dovetail-item"
TO = "dovetail-to"
TRACEPARENT = "traceparent"

#: Ids are keys, kept in memory for the time to live; derived ids need room behind the parent's.
JOB_ID_BYTES_MAX = 512
#: A foreign key of more would leave no room for how its job ends: such a record has no name.
KEY_BYTES_MAX = 1_000_000
#: A longer header is not one of ours, and would be on every record that follows from the job.
PARENT_BYTES_MAX = 16 * 1024
TRACEPARENT_BYTES_MAX = 512
#: Items of one job that are gathered: the ends of all of them go into one record.
GATHER_ITEMS_MAX = 5_000

Header = tuple[str, bytes]

#: What makes two jobs the same: the key, and which of its lives this is unless the first.
Identity = bytes | tuple[bytes, int]


def key_of(job_id: JobId) -> bytes:
    """The key of a record for this job."""
    return job_id.encode(errors="surrogateescape")


def id_of(key: bytes) -> JobId:
    """The job id in the key of a record."""
    return JobId(key.decode(errors="surrogateescape"))


class Job(msgspec.Struct, frozen=True, gc=False):
    """One job as it lies on an input topic.

    A struct, not a dataclass: one is made for each record, in a third of the time.
    """

    #: The key of its record.
    key: bytes
    payload: bytes
    parent: JobId | None = None
    attempts: int = 0
    not_before_ms: int = 0
    traceparent: bytes | None = None
    #: When it was put off, if it was.
    since_ms: int = 0
    #: Which item of its parent it is, if the items are gathered; see `Item`.
    item: bytes | None = None
    #: Headers of other producers, which its function may want to see.
    foreign: tuple[Header, ...] = ()

    @property
    def id(self) -> JobId:
        """Its key as text."""
        return id_of(self.key)

    @property
    def identity(self) -> Identity:
        """What makes two jobs the same. A tuple, because a key may hold any bytes."""
        return self.key if self.attempts == 0 else (self.key, self.attempts)

    def headers(self) -> list[Header]:
        """The headers of its record."""
        found = self.marks()
        if self.attempts:
            found.append((ATTEMPTS, b"%d" % self.attempts))
        if self.not_before_ms:
            found.append((NOT_BEFORE, b"%d" % self.not_before_ms))
        if self.since_ms:
            found.append((SINCE, b"%d" % self.since_ms))
        if self.item is not None:
            found.append((ITEM, self.item))
        return found

    def marks(self) -> list[Header]:
        """The headers that its result carries too: where it came from."""
        found: list[Header] = []
        if self.parent is not None:
            found.append((PARENT, key_of(self.parent)))
        if self.traceparent is not None:
            found.append((TRACEPARENT, self.traceparent))
        return found


class Item(msgspec.Struct, frozen=True):
    """One item of a job whose items are gathered."""

    #: The key of what is gathered: the id of the job, or what the spray made of it.
    base: bytes
    number: int
    count: int
    until_ms: int

    @property
    def opens(self) -> bool:
        """Whether it stands for the spray, and not for an item."""
        return self.number == self.count

    @classmethod
    def of(cls, job: Job) -> "Item | None":
        """Which item a job is; None if it is none, or its header says nothing."""
        item = None if job.item is None else cls.parsed(job.key, job.item)
        if item is None or item.opens:
            return None
        ending = b"/%d" % item.number
        if not job.key.endswith(ending):
            return None
        return cls(job.key[: -len(ending)], item.number, item.count, item.until_ms)

    @classmethod
    def parsed(cls, base: bytes, text: bytes) -> "Item | None":
        """From a header; with the count in place of a number it says that a job was sprayed."""
        parts = text.split(b"/")
        if len(parts) != 3 or not all(part.isdigit() and len(part) < 19 for part in parts):
            return None
        number, count, until_ms = map(int, parts)
        return cls(base, number, count, until_ms) if number <= count <= GATHER_ITEMS_MAX else None


def job_of(
    *, place: str, key: bytes | None, value: bytes | None, headers: Iterable[Header] | None = None
) -> Job:
    """The job that a record holds; `place` is its id if it has no key.

    Malformed headers count as absent: a foreign producer must not stop a partition.
    """
    payload = value if value is not None else b""
    named = place.encode() if key is None else key
    if not headers:
        return Job(named, payload)
    known = dict(headers)
    parent, trace = known.get(PARENT), known.get(TRACEPARENT)
    return Job(
        key=named,
        payload=payload,
        parent=id_of(parent) if parent and len(parent) <= PARENT_BYTES_MAX else None,
        attempts=number_in(known.get(ATTEMPTS)),
        not_before_ms=number_in(known.get(NOT_BEFORE)),
        traceparent=None if trace is None or len(trace) > TRACEPARENT_BYTES_MAX else trace,
        since_ms=number_in(known.get(SINCE)),
        item=known.get(ITEM),
        foreign=tuple(one for one in known.items() if not _is_own(one[0])),
    )


def is_name(key: bytes | None) -> TypeGuard[bytes]:
    """Whether a record's key is the id of a job; its place is, otherwise."""
    return key is not None and len(key) <= KEY_BYTES_MAX


def _is_own(name: str) -> bool:
    return name == TRACEPARENT or name.startswith("dovetail-")


def place_of(topic: str, partition: int, offset: int) -> str:
    """The id of a record that has none: where it lies, which never changes."""
    return f"{topic}-{partition}-{offset}"


def checked_id(given: str) -> JobId:
    """A job id from outside. Raises `InvalidInput`."""
    if not isinstance(given, str):
        raise InvalidInput(f"a job id is text; {given!r:.40} is {type(given).__name__}")
    try:
        key = key_of(JobId(given))
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the job id {given[:40]!r} is not Unicode text: {error}") from error
    if id_of(key) != given:
        raise InvalidInput(f"the job id {given[:40]!r} holds surrogates in place of text")
    size = len(key)
    if not 0 < size <= JOB_ID_BYTES_MAX:
        raise InvalidInput(
            f"a job id has 1 to {JOB_ID_BYTES_MAX} bytes, but {given[:40]!r}... has {size}"
            if size
            else "a job id must not be empty; leave it out to get one"
        )
    return JobId(given)


def number_in(text: bytes | None) -> int:
    """The number in a header; 0 if there is none."""
    # int() accepts spaces, signs and underscores, which we never write.
    return int(text) if text and text.isdigit() and len(text) < 19 else 0
