"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit: a producer's requests (K8)."""

from collections.abc import Iterable, Mapping

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.kafka.handlers.groups import coordinator_of as group_coordinator_of
from dovetail.kafka.handlers.groups import identity
from dovetail.kafka.handlers.positions import refusal
from dovetail.kafka.handlers.transaction_codes import coordinator_of, transaction_code
from dovetail.log.groups.types import (
    Generation,
    GroupId,
    OffsetCommit,
    PartitionKey,
    TransactionOf,
)
from dovetail.log.transactions.calls import Admit
from dovetail.log.transactions.types import Identity, Place, TransactionError

#: From these versions on a client knows the code of a fenced producer, names several transactions
#: as a broker, takes a new epoch with every end, and adds what it writes to by writing.
_FENCED_SINCE = 2
_BROKERS_SINCE = 4
_BUMPS_SINCE = 5
_ADDS_SINCE = 5
#: From this version of TxnOffsetCommit on it knows that it has to abort.
_ABORTS_SINCE = 4

_Codes = Mapping[Place, ErrorCode]


async def add_partitions(
    backend: Backend, call: Call, request: m.AddPartitionsToTxnRequest
) -> m.AddPartitionsToTxnResponse:
    """Partitions join a transaction: one of a client's, or from version 4 several of a broker's."""
    if call.api_version < _BROKERS_SINCE:
        who = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        codes = await _add(backend, call, request.v3_and_below_transactional_id, who, topics)
        return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, codes))

    if not call.access.allows(Operation.CLUSTER_ACTION, Kind.CLUSTER, CLUSTER_NAME):
        return m.AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    results = []
    for one in request.transactions:
        who = Identity(one.producer_id, one.producer_epoch)
        work = _verify if one.verify_only else _add
        codes = await work(backend, call, one.transactional_id, who, one.topics)
        results.append(
            m.AddPartitionsToTxnResponseTransaction(
                transactional_id=one.transactional_id, topic_results=_results(one.topics, codes)
            )
        )
    return m.AddPartitionsToTxnResponse(
        error_code=ErrorCode.NONE, results_by_transaction=tuple(results)
    )


def _places(topics: Iterable[m.TransactionTopic]) -> list[Place]:
    return [Place(topic.name, number) for topic in topics for number in topic.partitions]


def _results(
    topics: Iterable[m.TransactionTopic], codes: _Codes
) -> tuple[m.TransactionTopicResult, ...]:
    return tuple(
        m.TransactionTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                m.TransactionPartitionResult(
                    partition_index=number, partition_error_code=codes[Place(topic.name, number)]
                )
                for number in topic.partitions
            ),
        )
        for topic in topics
    )


async def _add(
    backend: Backend,
    call: Call,
    transactional_id: str,
    who: Identity,
    topics: tuple[m.TransactionTopic, ...],
) -> _Codes:
    """All of them, or none: the others are then answered as not attempted."""
    places = _places(topics)
    coordinator = coordinator_of(backend, call, Operation.WRITE, transactional_id)
    if isinstance(coordinator, ErrorCode):
        return dict.fromkeys(places, coordinator)

    wrong = {place: code for place in places if (code := _refusal(backend, call, place))}
    if wrong:
        return {place: wrong.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places}
    found = await coordinator.add(transactional_id, who, places)
    return dict.fromkeys(places, _code(found, call))


def _refusal(backend: Backend, call: Call, place: Place) -> ErrorCode:
    """Why a partition cannot be part of a transaction; NONE if it can."""
    try:
        call.access.demand(Operation.WRITE, Kind.TOPIC, place.topic)
        topic = backend.log.topic(place.topic)
    except DovetailError as error:
        return code_of(error)
    if topic.internal:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not 0 <= place.number < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _verify(
    backend: Backend,
    call: Call,
    transactional_id: str,
    who: Identity,
    topics: tuple[m.TransactionTopic, ...],
) -> _Codes:
    coordinator = coordinator_of(backend, call, Operation.WRITE, transactional_id)
    return {
        place: coordinator
        if isinstance(coordinator, ErrorCode)
        else _code(coordinator.verify(transactional_id, who, place), call)
        for place in _places(topics)
    }


def _code(found: object, call: Call) -> ErrorCode:
    if not isinstance(found, TransactionError):
        return ErrorCode.NONE
    if found is TransactionError.NOT_PART and call.api_version >= _BROKERS_SINCE + 1:
        return ErrorCode.TRANSACTION_ABORTABLE
    return transaction_code(found, knows_fenced=call.api_version >= _FENCED_SINCE)


async def add_offsets(
    backend: Backend, call: Call, request: m.AddOffsetsToTxnRequest
) -> m.AddOffsetsToTxnResponse:
    """The positions of a group join a transaction: the group's journal does."""
    coordinator = coordinator_of(backend, call, Operation.WRITE, request.transactional_id)
    if isinstance(coordinator, ErrorCode):
        return m.AddOffsetsToTxnResponse(error_code=coordinator)
    if not call.access.allows(Operation.READ, Kind.GROUP, request.group_id):
        return m.AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        journal = Place(*backend.groups.journal_of(GroupId(request.group_id)))
    except DovetailError:
        return m.AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    who = Identity(request.producer_id, request.producer_epoch)
    found = await coordinator.add(request.transactional_id, who, [journal])
    return m.AddOffsetsToTxnResponse(error_code=_code(found, call))


async def end_transaction(
    backend: Backend, call: Call, request: m.EndTxnRequest
) -> m.EndTxnResponse:
    """Commit or abort; answered when it is decided."""
    coordinator = coordinator_of(backend, call, Operation.WRITE, request.transactional_id)
    if isinstance(coordinator, ErrorCode):
        return m.EndTxnResponse(error_code=coordinator)
    try:
        found = await coordinator.end(
            request.transactional_id,
            Identity(request.producer_id, request.producer_epoch),
            commit=request.committed,
            bumps=call.api_version >= _BUMPS_SINCE,
        )
    except DovetailError:
        return m.EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if isinstance(found, TransactionError):
        return m.EndTxnResponse(error_code=_code(found, call))
    return m.EndTxnResponse(
        error_code=ErrorCode.NONE, producer_id=found.producer_id, producer_epoch=found.epoch
    )


async def commit_offsets(
    backend: Backend, call: Call, request: m.TxnOffsetCommitRequest
) -> m.TxnOffsetCommitResponse:
    """Positions that count from the end of a transaction on."""
    codes: dict[PartitionKey, ErrorCode] = {}
    wanted: dict[PartitionKey, OffsetCommit] = {}
    for topic in request.topics:
        for one in topic.partitions:
            key = PartitionKey(topic.name, one.partition_index)
            codes[key] = refusal(backend, call, key)
            wanted[key] = OffsetCommit(
                one.committed_offset, one.committed_leader_epoch, one.committed_metadata or ""
            )

    wanted = {key: offset for key, offset in wanted.items() if codes[key] is ErrorCode.NONE}
    if wanted:
        codes.update(await _store_positions(backend, call, request, wanted))

    return m.TxnOffsetCommitResponse(
        topics=tuple(
            m.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    m.TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index,
                        error_code=codes[PartitionKey(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def _store_positions(
    backend: Backend,
    call: Call,
    request: m.TxnOffsetCommitRequest,
    wanted: Mapping[PartitionKey, OffsetCommit],
) -> dict[PartitionKey, ErrorCode]:
    if not call.access.allows(Operation.WRITE, Kind.TRANSACTIONAL_ID, request.transactional_id):
        return dict.fromkeys(wanted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    group_id = GroupId(request.group_id)
    coordinator = group_coordinator_of(backend, call, Operation.READ, group_id)
    refused = group_code(coordinator.refusal(group_id))
    if refused is not ErrorCode.NONE:
        return dict.fromkeys(wanted, refused)

    who = Identity(request.producer_id, request.producer_epoch)
    adds = call.api_version >= _ADDS_SINCE
    try:
        journal = backend.groups.journal_of(group_id)
        number = await backend.transactions.ask(
            Admit(request.transactional_id, *who, *journal, adds)
        )
    except DovetailError as error:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if error.retriable else code_of(error)
        if code is ErrorCode.INVALID_TXN_STATE and call.api_version >= _ABORTS_SINCE:
            code = ErrorCode.TRANSACTION_ABORTABLE
        return dict.fromkeys(wanted, code)

    outcomes = await coordinator.commit(
        group_id,
        identity(request.member_id, request.group_instance_id),
        Generation(request.generation_id),
        wanted,
        of=TransactionOf(*who, number),
    )
    return {key: group_code(error) for key, error in outcomes.items()}
