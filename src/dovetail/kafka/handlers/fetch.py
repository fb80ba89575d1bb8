"""Fetch: from memory at once, from storage, or a long poll at the end of the log (L7).

A request in a session (`fetch_sessions.py`) reads the session's pending partitions; any other names
all its partitions. Each answer has at least one batch if there is any, however small the limits, so
that a large batch cannot stop a consumer.

With `read_committed` a reader gets nothing from the last stable offset on. With its batches it gets
their aborted transactions, whose records it skips itself (K8).
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dovetail.access import Access, Kind, Operation
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.fetch_sessions import (
    NO_EPOCH,
    NO_SESSION,
    Key,
    Session,
)
from dovetail.log.partition import Partition
from dovetail.log.producers import AbortedRange
from dovetail.log.reading import (
    known_aborted,
    read_committed,
    read_from_storage,
    read_from_tail,
)
from dovetail.record_batch import read_header

#: From this version on topics are named by their ids.
_TOPIC_IDS_SINCE = 13

#: What one answer holds at most, whatever the client asks for.
RESPONSE_BYTES_MAX = 16 * 1024 * 1024

#: The isolation level of a reader of what is committed.
READ_COMMITTED = 1

#: A long poll ends after this, whatever the client asks for.
WAIT_MS_MAX = 5 * 60 * 1000


@dataclass(slots=True)
class _Read:
    """What became of one partition of a request."""

    request: m.FetchRequestPartition
    partition: Partition | None = None
    code: ErrorCode = ErrorCode.NONE
    batches: tuple[Buffer, ...] = ()
    #: The tail does not have it; the storage must be asked.
    cold: bool = False
    #: For a reader of what is committed: nothing from here on, and what it has to skip.
    end: int | None = None
    aborted: list[AbortedRange] | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.batches))


@dataclass(slots=True)
class _Topic:
    request: m.FetchRequestTopic
    name: str
    reads: list[_Read]


def fetch(
    backend: Backend, call: Call, request: m.FetchRequest
) -> m.FetchResponse | Callable[[], Coroutine[Any, Any, m.FetchResponse]]:
    """The answer, or what has to be begun to read the storage or to wait for it."""
    if request.session_epoch != NO_EPOCH or request.session_id != NO_SESSION:
        by_id = call.api_version >= _TOPIC_IDS_SINCE
        now_ms = backend.clock.monotonic_ms()
        session = backend.sessions.begin(request, by_id=by_id, now_ms=now_ms)
        if isinstance(session, ErrorCode):
            backend.metrics.error("Fetch", session.name)
            return m.FetchResponse(error_code=session, responses=())
        if session is not None:
            found = _session_from_tail(backend, call.access, request, session)
            return found or partial(_session_later, backend, call.access, request, session)
    topics = _look_up(backend, call.access, request)
    found = fetch_from_tail(backend, request, topics)
    return found or partial(fetch_later, backend, request, topics)


def fetch_from_tail(
    backend: Backend, request: m.FetchRequest, topics: list[_Topic]
) -> m.FetchResponse | None:
    """The answer, if it is all in memory and need not wait."""
    size = _read_tails(topics, _bytes_max(request), leased=True)  # As `_look_up` just saw.
    reads = [read for topic in topics for read in topic.reads]
    if any(read.cold for read in reads):
        return None
    failed = any(read.code is not ErrorCode.NONE for read in reads)
    if size < request.min_bytes and request.max_wait_ms > 0 and not failed:
        return None
    return _response(backend, topics)


async def fetch_later(
    backend: Backend, request: m.FetchRequest, topics: list[_Topic]
) -> m.FetchResponse:
    """The answer, after reading the storage or waiting for data."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
    woken = asyncio.Event()
    partitions = {r.partition for t in topics for r in t.reads if r.partition is not None}
    for partition in partitions:
        partition.on_confirmed.add(woken.set)

    try:
        while True:
            woken.clear()
            size = _read_tails(topics, _bytes_max(request), leased=backend.log.holds_lease())
            cold = await _read_cold(topics, _bytes_max(request) - size)
            failed = any(r.code is not ErrorCode.NONE for t in topics for r in t.reads)
            if cold or size >= request.min_bytes or failed or loop.time() >= deadline:
                return _response(backend, topics)
            try:
                async with asyncio.timeout_at(deadline):
                    await woken.wait()
            except TimeoutError:
                pass
    finally:
        for partition in partitions:
            partition.on_confirmed.discard(woken.set)


# In a session


def _session_from_tail(
    backend: Backend, access: Access, request: m.FetchRequest, session: Session
) -> m.FetchResponse | None:
    """The answer, if what is pending is in memory and need not wait."""
    topics = _look_up_pending(backend, access, request, session)
    size = _read_tails(topics, _bytes_max(request), leased=True)  # As `_look_up` just saw.
    reads = [read for topic in topics for read in topic.reads]
    if any(read.cold for read in reads):
        return None
    _settle(session, topics, empty=size == 0)
    failed = any(read.code is not ErrorCode.NONE for read in reads)
    if size < request.min_bytes and request.max_wait_ms > 0 and not failed:
        return None
    return _session_response(backend, session, topics)


async def _session_later(
    backend: Backend, access: Access, request: m.FetchRequest, session: Session
) -> m.FetchResponse:
    """The answer, after reading the storage or waiting for a partition to call."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
    while True:
        session.woken.clear()
        topics = _look_up_pending(backend, access, request, session)
        size = _read_tails(topics, _bytes_max(request), leased=backend.log.holds_lease())
        was_cold = any(read.cold for topic in topics for read in topic.reads)
        cold = await _read_cold(topics, _bytes_max(request) - size)
        failed = any(r.code is not ErrorCode.NONE for t in topics for r in t.reads)
        _settle(session, topics, empty=size == 0 and not was_cold)
        if cold or size >= request.min_bytes or failed or loop.time() >= deadline:
            return _session_response(backend, session, topics)
        try:
            async with asyncio.timeout_at(deadline):
                await session.woken.wait()
        except TimeoutError:
            pass


def _look_up_pending(
    backend: Backend, access: Access, request: m.FetchRequest, session: Session
) -> list[_Topic]:
    if not backend.log.holds_lease():  # All of them have that to tell.
        session.look_everywhere()
    return _look_up(backend, access, replace(request, topics=session.topics()))


def _settle(session: Session, topics: list[_Topic], *, empty: bool) -> None:
    """Leaves those alone that were read to their end; the others call too, should this one wait.

    If all were read at once and none had anything (`empty`), all are at their end. Otherwise the
    limits may have cut some off, and only the end of the log counts.
    """
    for topic in topics:
        for read in topic.reads:
            if read.partition is None or read.code is not ErrorCode.NONE:
                continue
            at_end = empty or read.request.fetch_offset >= read.partition.high_watermark
            session.watch(_key(topic, read), read.partition, idle=at_end and not read.batches)


def _key(topic: _Topic, read: _Read) -> Key:
    return Key(topic.request.topic, topic.request.topic_id, read.request.partition)


def _session_response(backend: Backend, session: Session, topics: list[_Topic]) -> m.FetchResponse:
    responses = []
    for topic in topics:
        told = [(read, _partition(backend, topic.name, read)) for read in topic.reads]
        news = [made for read, made in told if session.tells(_key(topic, read), made)]
        if news:
            responses.append(
                m.FetchResponseTopic(
                    topic=topic.request.topic,
                    topic_id=topic.request.topic_id,
                    partitions=tuple(news),
                )
            )
    return m.FetchResponse(session_id=session.id, responses=tuple(responses))


def _bytes_max(request: m.FetchRequest) -> int:
    return min(max(request.max_bytes, 0), RESPONSE_BYTES_MAX)


def _look_up(backend: Backend, access: Access, request: m.FetchRequest) -> list[_Topic]:
    topics = []
    for wanted in request.topics:
        name, unknown = wanted.topic, ErrorCode.NONE
        if not name:
            try:
                name = backend.log.topic_by_id(wanted.topic_id.hex()).name
            except DovetailError:
                unknown = ErrorCode.UNKNOWN_TOPIC_ID
        if name and not access.allows(Operation.READ, Kind.TOPIC, name):
            unknown = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        reads = [_Read(partition, code=unknown) for partition in wanted.partitions]
        for read in reads:
            if read.code is ErrorCode.NONE:
                _find_partition(backend, name, read)
            if request.isolation_level == READ_COMMITTED:
                read.aborted = []
        topics.append(_Topic(wanted, name, reads))
    return topics


def _find_partition(backend: Backend, name: str, read: _Read) -> None:
    try:
        read.partition = backend.log.partition(name, read.request.partition)
    except DovetailError as error:
        read.code = code_of(error)
        return
    read.code = epoch_code(read.request.current_leader_epoch, read.partition.term)


def epoch_code(asked: int, term: int) -> ErrorCode:
    """Whether client and node speak of the same leadership; -1 asks for no check."""
    if asked < 0 or asked == term:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if asked < term else ErrorCode.UNKNOWN_LEADER_EPOCH


def _read_tails(topics: list[_Topic], bytes_max: int, *, leased: bool) -> int:
    """Fills in what is in memory; returns the bytes of all batches read so far.

    A poll that waited while the lease ended is refused: what it waited for may be elsewhere.
    """
    size = 0
    for topic in topics:
        for read in topic.reads:
            if read.partition is None or read.code is not ErrorCode.NONE:
                continue
            if not (leased and read.partition.serving):
                read.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            if size and size >= bytes_max:
                continue
            room = min(read.request.partition_max_bytes, bytes_max - size)

            if read.aborted is not None:
                read.end = read.partition.last_stable
            try:
                found = read_from_tail(
                    read.partition, read.request.fetch_offset, room, end=read.end
                )
            except DovetailError as error:
                read.code = code_of(error)
                continue
            read.cold = found is None
            read.batches = _within(found or [], room, first=size == 0)
            if read.aborted is not None and read.batches:
                _find_aborted(read, read.partition)
            size += read.size
    return size


def _find_aborted(read: _Read, partition: Partition) -> None:
    """What to skip, if that is in memory; else it is read with its batches from the storage."""
    aborted = known_aborted(partition, read.request.fetch_offset, read.batches[-1])
    read.aborted = aborted or []
    if aborted is None:
        read.cold, read.batches = True, ()


def _within(batches: list[Buffer], room: int, *, first: bool) -> tuple[Buffer, ...]:
    """Drops a single batch that is over the limit, unless the answer would be empty."""
    if not first and batches and len(batches[0]) > room:
        return ()
    return tuple(batches)


async def _read_cold(topics: list[_Topic], bytes_max: int) -> int:
    """Reads from the storage what is not in memory; returns the bytes of that."""
    size = 0
    for topic in topics:
        for read in topic.reads:
            if not read.cold or read.partition is None or size > bytes_max:
                continue
            room = min(read.request.partition_max_bytes, max(bytes_max - size, 1))
            offset = read.request.fetch_offset
            try:
                if read.end is None:
                    found = await read_from_storage(read.partition, offset, room)
                else:
                    found, read.aborted = await read_committed(
                        read.partition, offset, room, end=read.end
                    )
                read.batches = tuple(found)
            except DovetailError as error:
                read.code, read.batches = code_of(error), ()
                continue
            read.cold = False
            size += read.size
    return size


def _response(backend: Backend, topics: list[_Topic]) -> m.FetchResponse:
    return m.FetchResponse(
        responses=tuple(
            m.FetchResponseTopic(
                topic=topic.request.topic,
                topic_id=topic.request.topic_id,
                partitions=tuple(_partition(backend, topic.name, read) for read in topic.reads),
            )
            for topic in topics
        )
    )


def _partition(backend: Backend, name: str, read: _Read) -> m.FetchResponsePartition:
    partition = read.partition
    if read.code is not ErrorCode.NONE:
        backend.metrics.error("Fetch", read.code.name)
    elif read.batches:
        # The first batch may begin before the offset that was asked for.
        records = read_header(read.batches[-1]).offset_end - read.request.fetch_offset
        backend.metrics.fetched(name, max(0, records), read.size)
    return m.FetchResponsePartition(
        partition_index=read.request.partition,
        error_code=read.code,
        high_watermark=partition.high_watermark if partition else -1,
        last_stable_offset=partition.last_stable if partition else -1,
        log_start_offset=partition.log_start if partition else -1,
        aborted_transactions=None
        if read.aborted is None
        else tuple(
            m.FetchResponseAbortedTransaction(
                producer_id=aborted.producer_id, first_offset=aborted.first_offset
            )
            for aborted in read.aborted
        ),
        records=read.batches,
    )
