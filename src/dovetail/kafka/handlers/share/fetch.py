"""ShareFetch: acquires records from memory or storage, or waits until there are some (KIP-932).

The partitions of the session take turns to be first. Records are read from the first offset at
which the share-partition has something to give, and what is acquired is sent with its batches; the
client sees only the acquired records. Markers of transactions are skipped and, for groups that read
only what is committed, records of aborted ones too: a share group's client cannot skip them itself.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.fetch import RESPONSE_BYTES_MAX, WAIT_MS_MAX
from dovetail.kafka.handlers.share.acknowledge import (
    Outcome,
    close,
    endpoints,
    keeper_of,
    leader_of,
    refusal,
    release,
    said_of,
    settle,
    share_code,
)
from dovetail.kafka.handlers.share.sessions import CLOSES, OPENS, Key, Session
from dovetail.log.producers import AbortedRange
from dovetail.log.reading import (
    known_aborted,
    read_committed,
    read_from_storage,
    read_from_tail,
)
from dovetail.log.share.keeper import Keeper
from dovetail.log.share.types import Acquired, Batch
from dovetail.record_batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header

#: Acquires no more records than were asked for, also if a batch has more (KIP-1206).
_RECORD_LIMIT = 1

#: Bytes that are looked at for one partition: what is read and not acquired was read for nothing.
_READ_BYTES = 1024 * 1024


@dataclass(slots=True)
class _Row:
    """What became of one partition."""

    name: str = ""
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    batches: tuple[Buffer, ...] = ()
    acquired: Sequence[Acquired] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.batches))


@dataclass(slots=True)
class _Poll:
    """A request that looks for records."""

    backend: Backend
    call: Call
    session: Session
    records_left: int
    bytes_left: int
    strict: bool
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    watched: dict[Key, tuple[Keeper, set[Callable[[], None]]]] = field(default_factory=dict)


async def fetch(backend: Backend, call: Call, request: m.ShareFetchRequest) -> m.ShareFetchResponse:
    """Returns with records, or when the time is over; and when what was said is stored."""
    epoch = request.share_session_epoch
    code = refusal(call, request.group_id, request.member_id)
    said = said_of((topic.topic_id, topic.partitions) for topic in request.topics)
    if code is ErrorCode.NONE and epoch == OPENS and said:
        code = ErrorCode.INVALID_REQUEST
    if code is not ErrorCode.NONE:
        return m.ShareFetchResponse(error_code=code)

    group_id, member_id = request.group_id or "", request.member_id or ""
    now_ms = backend.clock.monotonic_ms()
    session = backend.share_sessions.begin(
        group_id, member_id, epoch, owner=call.access.principal or call.client_host, now_ms=now_ms
    )
    if isinstance(session, ErrorCode):
        backend.metrics.error("ShareFetch", session.name)
        return m.ShareFetchResponse(error_code=session)
    code = backend.share_sessions.update(
        session,
        (Key(t.topic_id, p.partition_index) for t in request.topics for p in t.partitions),
        (Key(t.topic_id, number) for t in request.forgotten_topics_data for number in t.partitions),
    )
    if code is not ErrorCode.NONE:
        backend.metrics.error("ShareFetch", code.name)
        return m.ShareFetchResponse(error_code=code)

    if epoch == OPENS:
        _end_with_connection(backend, call, session)
        _begin_anew(backend, call, session)
    if epoch == CLOSES:
        outcomes = await settle(backend, call.access, session, said, renews=request.is_renew_ack)
        await close(backend, session)
        return _response(backend, group_id, {}, outcomes)
    # What becomes available by what was said wakes the search for records.
    outcomes, rows = await asyncio.gather(
        settle(backend, call.access, session, said, renews=request.is_renew_ack),
        _look(backend, call, session, request),
    )
    return _response(backend, group_id, rows, outcomes)


def _end_with_connection(backend: Backend, call: Call, session: Session) -> None:
    """A member whose connection ends gives back what it has, as with Kafka."""
    on_lost = call.on_lost
    if on_lost is None:
        return

    def lost() -> None:
        if backend.share_sessions.end(session):
            for key in session.partitions:
                release(backend, session, key)

    on_lost.add(lost)
    session.on_end = partial(on_lost.discard, lost)


def _begin_anew(backend: Backend, call: Call, session: Session) -> None:
    """Forgets shares that nobody uses: a member that died may have left them, and the group may
    have been moved since."""
    for key in session.partitions:
        keeper = keeper_of(backend, call.access, session.group_id, key)
        if not isinstance(keeper, ErrorCode):
            backend.shares.let_go(keeper)


async def _look(
    backend: Backend, call: Call, session: Session, request: m.ShareFetchRequest
) -> dict[Key, _Row]:
    """Looks for records until there are some, or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
    poll = _Poll(
        backend,
        call,
        session,
        records_left=request.max_records,
        bytes_left=min(max(request.max_bytes, 0), RESPONSE_BYTES_MAX),
        strict=request.share_acquire_mode == _RECORD_LIMIT,
    )

    try:
        while True:
            poll.woken.clear()
            rows = {}
            for key in session.turn():
                row = await _acquire(poll, key)
                if row is not None:
                    rows[key] = row
            if rows or loop.time() >= deadline or poll.records_left <= 0:
                return rows
            try:
                async with asyncio.timeout_at(deadline):
                    await poll.woken.wait()
            except TimeoutError:
                pass
    finally:
        for keeper, wakes in poll.watched.values():
            for wake in wakes:
                keeper.partition.on_confirmed.discard(wake)
                keeper.on_available.discard(wake)


async def _acquire(poll: _Poll, key: Key) -> _Row | None:
    """What a partition has for the member; None if it has nothing."""
    if poll.records_left <= 0 or poll.bytes_left <= 0:
        return None
    keeper = keeper_of(poll.backend, poll.call.access, poll.session.group_id, key)
    if isinstance(keeper, ErrorCode):
        return _Row(code=keeper)
    try:
        machine = await keeper.ready()
        _watch(poll, key, keeper)
        row = None
        before = None
        # What is passed over makes room for what lies behind it.
        while row is None and before != (machine.start, machine.end):
            before = (machine.start, machine.end)
            offset = machine.next_offset
            if offset is None:
                break
            row = await _read(poll, keeper, offset)
    except DovetailError as error:
        return _Row(code=share_code(error), message=str(error))
    if row is not None:
        row.name = keeper.place.topic
        poll.bytes_left -= row.size
    return row


def _watch(poll: _Poll, key: Key, keeper: Keeper) -> None:
    known = poll.watched.get(key)
    if known is None or known[0] is not keeper:
        wake = poll.woken.set
        poll.watched[key] = (keeper, {wake})
        keeper.partition.on_confirmed.add(wake)
        keeper.on_available.add(wake)


async def _read(poll: _Poll, keeper: Keeper, offset: int) -> _Row | None:
    """Reads from an offset and acquires of that what is available."""
    partition = keeper.partition
    machine = await keeper.ready()
    settings = machine.settings
    end = partition.last_stable if settings.committed_only else partition.high_watermark
    if offset >= end:
        return None
    if offset < partition.log_start:
        keeper.trim()
        return None
    room = min(poll.bytes_left, _READ_BYTES)
    found = read_from_tail(partition, offset, room, end=end)
    aborted: list[AbortedRange] | None = []
    if found and settings.committed_only:
        aborted = known_aborted(partition, offset, found[-1])
    if aborted is None or (found is None and settings.committed_only):
        found, aborted = await read_committed(partition, offset, room, end=end)
    elif found is None:
        found = await read_from_storage(partition, offset, room, end=end)

    seen: list[tuple[BatchHeader, Buffer]] = []
    acquired = keeper.acquire(
        poll.session.member_id,
        machine,
        offset,
        _batches(found, seen, aborted),
        records_max=poll.records_left,
        strict=poll.strict,
    )
    if not acquired:
        return None
    poll.records_left -= sum(one.last - one.first + 1 for one in acquired)
    return _Row(batches=_with_any(seen, acquired), acquired=acquired)


def _batches(
    found: Sequence[Buffer],
    seen: list[tuple[BatchHeader, Buffer]],
    aborted: Sequence[AbortedRange],
) -> Iterator[Batch]:
    """The offsets of each batch, as far as they are asked for; noted in `seen`."""
    for batch in found:
        header = read_header(batch)
        seen.append((header, batch))
        skip = bool(header.attributes & CONTROL) or not header.record_count
        if aborted and header.attributes & TRANSACTIONAL:
            skip = skip or any(
                one.producer_id == header.producer_id
                and one.first_offset <= header.base_offset <= one.last_offset
                for one in aborted
            )
        yield Batch(header.base_offset, header.offset_end - 1, skip)


def _with_any(
    seen: Sequence[tuple[BatchHeader, Buffer]], acquired: Sequence[Acquired]
) -> tuple[Buffer, ...]:
    """The batches that have an acquired record; both are in the order of offsets."""
    kept: list[Buffer] = []
    at = 0
    for header, batch in seen:
        while at < len(acquired) and acquired[at].last < header.base_offset:
            at += 1
        if at < len(acquired) and acquired[at].first < header.offset_end:
            kept.append(batch)
    return tuple(kept)


def _response(
    backend: Backend, group_id: str, rows: dict[Key, _Row], outcomes: dict[Key, Outcome]
) -> m.ShareFetchResponse:
    topics: dict[bytes, list[m.ShareFetchResponsePartition]] = {}
    nothing, stored = _Row(), Outcome()
    for key in {**rows, **outcomes}:
        row, outcome = rows.get(key, nothing), outcomes.get(key, stored)
        if row.code is not ErrorCode.NONE:
            backend.metrics.error("ShareFetch", row.code.name)
        elif row.batches:
            records = sum(one.last + 1 - one.first for one in row.acquired)
            backend.metrics.fetched(row.name, records, row.size)

        wrong = row.code if row.code is not ErrorCode.NONE else outcome.code
        topics.setdefault(key.topic_id, []).append(
            m.ShareFetchResponsePartition(
                partition_index=key.number,
                error_code=row.code,
                error_message=row.message,
                acknowledge_error_code=outcome.code,
                acknowledge_error_message=outcome.message,
                current_leader=leader_of(backend, key, wrong),
                records=row.batches,
                acquired_records=tuple(
                    m.ShareFetchResponseAcquired(
                        first_offset=one.first,
                        last_offset=one.last,
                        delivery_count=one.deliveries,
                    )
                    for one in row.acquired
                ),
            )
        )

    return m.ShareFetchResponse(
        acquisition_lock_timeout_ms=backend.shares.settings.of(group_id).lock_ms,
        responses=tuple(
            m.ShareFetchResponseTopic(topic_id=topic_id, partitions=tuple(made))
            for topic_id, made in topics.items()
        ),
        node_endpoints=endpoints(backend, (p.current_leader for ps in topics.values() for p in ps)),
    )
