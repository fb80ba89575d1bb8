"""ShareAcknowledge: applies acknowledgements (KIP-932); ShareFetch can carry them too.

Each partition is answered when its share-partition has stored them (`log/share/keeper.py`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dovetail.access import Access, Kind, Operation
from dovetail.errors import DovetailError, NotFound, TopicUnknown
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.share.sessions import CLOSES, OPENS, Key, Session
from dovetail.log.share.keeper import Keeper
from dovetail.log.share.types import Acknowledge, Acknowledgement, ShareError

_CODES = {
    ShareError.NONE: ErrorCode.NONE,
    ShareError.INVALID_RECORD_STATE: ErrorCode.INVALID_RECORD_STATE,
    ShareError.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    ShareError.RENEW_OFF: ErrorCode.INVALID_REQUEST,
}


class Outcome(NamedTuple):
    """What became of the acknowledgements of one partition."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


Said = Mapping[Key, Sequence[Acknowledgement]]


async def acknowledge(
    backend: Backend, call: Call, request: m.ShareAcknowledgeRequest
) -> m.ShareAcknowledgeResponse:
    """Returns when all of it is stored, or refused."""
    epoch = request.share_session_epoch
    code = refusal(call, request.group_id, request.member_id)
    said = said_of((topic.topic_id, topic.partitions) for topic in request.topics)
    if code is ErrorCode.NONE and epoch == OPENS:
        code = ErrorCode.INVALID_SHARE_SESSION_EPOCH
    if code is not ErrorCode.NONE:
        return m.ShareAcknowledgeResponse(error_code=code)

    now_ms = backend.clock.monotonic_ms()
    group_id, member_id = request.group_id or "", request.member_id or ""
    session = backend.share_sessions.begin(
        group_id, member_id, epoch, owner=call.access.principal or call.client_host, now_ms=now_ms
    )
    if isinstance(session, ErrorCode):
        backend.metrics.error("ShareAcknowledge", session.name)
        return m.ShareAcknowledgeResponse(error_code=session)
    outcomes = await settle(backend, call.access, session, said, renews=request.is_renew_ack)
    if epoch == CLOSES:
        await close(backend, session)

    topics: dict[bytes, list[m.ShareAcknowledgeResponsePartition]] = {}
    for key, outcome in outcomes.items():
        topics.setdefault(key.topic_id, []).append(
            m.ShareAcknowledgeResponsePartition(
                partition_index=key.number,
                error_code=outcome.code,
                error_message=outcome.message,
                current_leader=leader_of(backend, key, outcome.code),
            )
        )
    return m.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=backend.shares.settings.of(group_id).lock_ms,
        responses=tuple(
            m.ShareAcknowledgeResponseTopic(topic_id=topic_id, partitions=tuple(rows))
            for topic_id, rows in topics.items()
        ),
        node_endpoints=endpoints(backend, (r.current_leader for rs in topics.values() for r in rs)),
    )


def refusal(call: Call, group_id: str | None, member_id: str | None) -> ErrorCode:
    """Why the whole request is refused."""
    if not group_id or not member_id:
        return ErrorCode.INVALID_REQUEST
    if not call.access.allows(Operation.READ, Kind.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def said_of(
    topics: Iterable[
        tuple[
            bytes,
            Iterable[m.ShareFetchRequestPartition | m.ShareAcknowledgeRequestPartition],
        ]
    ],
) -> dict[Key, list[Acknowledgement]]:
    """What a request says of records, by partition; also if it names one more than once."""
    said: dict[Key, list[Acknowledgement]] = {}
    for topic_id, partitions in topics:
        for partition in partitions:
            for batch in partition.acknowledgement_batches:
                one = Acknowledgement(
                    batch.first_offset, batch.last_offset, batch.acknowledge_types
                )
                said.setdefault(Key(topic_id, partition.partition_index), []).append(one)
    return said


def keeper_of(backend: Backend, access: Access, group_id: str, key: Key) -> Keeper | ErrorCode:
    """The share of a partition, or why there is none here."""
    try:
        topic = backend.log.topic_by_id(key.topic_id.hex()).name
    except DovetailError:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not access.allows(Operation.READ, Kind.TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        return backend.shares.of(group_id, topic, key.number)
    except DovetailError as error:
        return code_of(error)


def share_code(error: DovetailError) -> ErrorCode:
    """The code of what went wrong with a share."""
    if isinstance(error, NotFound) and not isinstance(error, TopicUnknown):
        return ErrorCode.GROUP_ID_NOT_FOUND
    return code_of(error)


async def settle(
    backend: Backend, access: Access, session: Session, said: Said, *, renews: bool
) -> dict[Key, Outcome]:
    """Tells each partition what a member says; returns when all have answered.

    A request that renews says so (`renews`), as Kafka asks for.
    """

    async def one(key: Key) -> Outcome:
        if not renews and any(Acknowledge.RENEW in batch.kinds for batch in said[key]):
            return Outcome(ErrorCode.INVALID_REQUEST, "a renewal in a request that renews nothing")
        keeper = keeper_of(backend, access, session.group_id, key)
        if isinstance(keeper, ErrorCode):
            return Outcome(keeper)
        try:
            error = await keeper.acknowledge(session.member_id, said[key])
        except DovetailError as met:
            return Outcome(share_code(met), str(met))
        return Outcome(_CODES[error], None if error is ShareError.NONE else error.value)

    outcomes = await asyncio.gather(*(one(key) for key in said))
    for outcome in outcomes:
        if outcome.code is not ErrorCode.NONE:
            backend.metrics.error("ShareAcknowledge", outcome.code.name)
    return dict(zip(said, outcomes, strict=True))


async def close(backend: Backend, session: Session) -> None:
    """Releases what a member has, and forgets share-partitions that are unused here."""
    released = {key: release(backend, session, key) for key in session.partitions}
    for key, (keeper, stored) in released.items():
        try:
            if stored is not None:
                await stored
        except DovetailError:
            continue  # Its owner is another one now, which knows no locks of this one.
        if keeper is not None and not backend.share_sessions.uses(session.group_id, key):
            backend.shares.let_go(keeper)


def release(
    backend: Backend, session: Session, key: Key
) -> tuple[Keeper | None, "asyncio.Future[None] | None"]:
    """Releases what a member has of one partition: at once, before it can acquire anything anew."""
    try:
        topic = backend.log.topic_by_id(key.topic_id.hex()).name
        keeper = backend.shares.of(session.group_id, topic, key.number)
    except DovetailError:
        return None, None  # As above.
    return keeper, keeper.release_all(session.member_id)


def leader_of(backend: Backend, key: Key, code: ErrorCode) -> m.LeaderIdAndEpoch:
    """Who owns the partition, told to a client that is wrong here."""
    if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return m.LEADER_UNKNOWN
    try:
        record = backend.log.topic_by_id(key.topic_id.hex())
        found = backend.log.ownership(record, key.number)
    except DovetailError:
        return m.LEADER_UNKNOWN
    return m.LeaderIdAndEpoch(leader_id=found.owner, leader_epoch=found.term)


def endpoints(
    backend: Backend, leaders: Iterable[m.LeaderIdAndEpoch]
) -> tuple[m.NodeEndpoint, ...]:
    """The addresses of the owners that were named."""
    named = {leader.leader_id for leader in leaders if leader.leader_id >= 0}
    if not named:
        return ()
    brokers = backend.brokers()
    return tuple(
        m.NodeEndpoint(node_id=node, host=brokers[node].host, port=brokers[node].port)
        for node in sorted(named)
        if node in brokers
    )
