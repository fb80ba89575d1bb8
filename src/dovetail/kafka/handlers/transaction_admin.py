"""ListTransactions, DescribeTransactions, DescribeProducers and WriteTxnMarkers.

With these an operator finds a hanging transaction and ends it (KIP-664).
"""

from collections import defaultdict

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError, Fenced, InvalidInput
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.transaction_codes import coordinator_of, transaction_code
from dovetail.log.groups.topic_patterns import TopicPattern
from dovetail.log.transactions.registry import TRANSACTIONS_TOPIC
from dovetail.log.transactions.types import Place, TransactionError, TransactionState
from dovetail.record_batch import Marker

#: A marker that belongs to no transaction that a coordinator counts.
_NO_NUMBER = -1


async def list_transactions(
    backend: Backend, call: Call, request: m.ListTransactionsRequest
) -> m.ListTransactionsResponse:
    """The transactional ids that are coordinated here."""
    if backend.transactions.loading:
        return m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    pattern: TopicPattern | None = None
    if request.transactional_id_pattern:
        try:
            pattern = TopicPattern(request.transactional_id_pattern)
        except InvalidInput:
            return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    known = {state.value for state in TransactionState}
    wanted = {name for name in request.state_filters if name in known}
    unknown = tuple(name for name in request.state_filters if name not in known)

    now_ms = backend.clock.wall_ms()
    found = []
    for transactional_id, one in backend.transactions.transactions():
        long = one.started_ms >= 0 and now_ms - one.started_ms > request.duration_filter
        if (
            (request.state_filters and one.state.value not in wanted)
            or (request.producer_id_filters and one.producer_id not in request.producer_id_filters)
            or (request.duration_filter >= 0 and not long)
            or (pattern is not None and not pattern.matches(transactional_id))
            or not call.access.allows(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id)
        ):
            continue
        found.append(
            m.ListTransactionsResponseTransaction(
                transactional_id=transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.value,
            )
        )
    return m.ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=unknown,
        transaction_states=tuple(found),
    )


async def describe_transactions(
    backend: Backend, call: Call, request: m.DescribeTransactionsRequest
) -> m.DescribeTransactionsResponse:
    """Each transactional id with the partitions of its transaction."""
    return m.DescribeTransactionsResponse(
        transaction_states=tuple(
            _describe(backend, call, transactional_id)
            for transactional_id in dict.fromkeys(request.transactional_ids)
        )
    )


def _describe(
    backend: Backend, call: Call, transactional_id: str
) -> m.DescribeTransactionsResponseTransaction:
    coordinator = coordinator_of(backend, call, Operation.DESCRIBE, transactional_id)
    if isinstance(coordinator, ErrorCode):
        return m.DescribeTransactionsResponseTransaction(
            error_code=coordinator, transactional_id=transactional_id
        )
    found = coordinator.describe(transactional_id)
    if isinstance(found, TransactionError):
        return m.DescribeTransactionsResponseTransaction(
            error_code=transaction_code(found), transactional_id=transactional_id
        )

    topics: dict[str, list[int]] = defaultdict(list)
    for place in found.partitions:
        if call.access.allows(Operation.DESCRIBE, Kind.TOPIC, place.topic):
            topics[place.topic].append(place.number)
    return m.DescribeTransactionsResponseTransaction(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=tuple(
            m.DescribeTransactionsResponseTopic(topic=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in topics.items()
        ),
    )


async def describe_producers(
    backend: Backend, call: Call, request: m.DescribeProducersRequest
) -> m.DescribeProducersResponse:
    """Who writes to each partition, and where its open transaction begins."""
    return m.DescribeProducersResponse(
        topics=tuple(
            m.DescribeProducersResponseTopic(
                name=topic.name,
                partitions=tuple(
                    _producers(backend, call, topic.name, number)
                    for number in topic.partition_indexes
                ),
            )
            for topic in request.topics
        )
    )


def _producers(
    backend: Backend, call: Call, topic: str, number: int
) -> m.DescribeProducersResponsePartition:
    try:
        call.access.demand(Operation.READ, Kind.TOPIC, topic)
        table = backend.log.partition(topic, number).producers
    except DovetailError as error:
        return m.DescribeProducersResponsePartition(
            partition_index=number, error_code=code_of(error), error_message=str(error)
        )
    opened = table.open_transactions()
    return m.DescribeProducersResponsePartition(
        partition_index=number,
        error_code=ErrorCode.NONE,
        active_producers=tuple(
            m.DescribeProducersResponseProducer(
                producer_id=producer_id,
                producer_epoch=known.epoch,
                last_sequence=known.batches[-1].sequence_last if known.batches else -1,
                last_timestamp=known.seen_ms,
                coordinator_epoch=known.coordinator_epoch,
                current_txn_start_offset=opened[producer_id].first_offset
                if producer_id in opened
                else -1,
            )
            for producer_id, known in table.known().items()
        ),
    )


async def write_markers(
    backend: Backend, call: Call, request: m.WriteTxnMarkersRequest
) -> m.WriteTxnMarkersResponse:
    """Ends transactions in partitions of this broker; an operator does so with one that hangs."""
    allowed = call.access.allows(Operation.CLUSTER_ACTION, Kind.CLUSTER, CLUSTER_NAME)
    markers = []
    for one in request.markers:
        marker = Marker(
            one.producer_id,
            one.producer_epoch,
            one.transaction_result,
            one.coordinator_epoch,
            _NO_NUMBER,
        )

        topics = []
        for topic in one.topics:
            places = [Place(topic.name, number) for number in topic.partition_indexes]
            codes = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(places)
            if allowed and (marker.producer_id < 0 or marker.producer_epoch < 0):
                codes = [ErrorCode.INVALID_REQUEST] * len(places)
            elif allowed and topic.name == TRANSACTIONS_TOPIC:
                codes = [ErrorCode.INVALID_TOPIC_EXCEPTION] * len(places)
            elif allowed:
                outcomes = await backend.transactions.end_here(marker, places)
                codes = [_marker_code(outcome) for outcome in outcomes]
            topics.append(_marked(topic.name, places, codes))
        markers.append(
            m.WriteTxnMarkersResponseMarker(producer_id=one.producer_id, topics=tuple(topics))
        )
    return m.WriteTxnMarkersResponse(markers=tuple(markers))


def _marker_code(outcome: DovetailError | None) -> ErrorCode:
    if outcome is None:
        return ErrorCode.NONE
    if isinstance(outcome, Fenced):
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return code_of(outcome)


def _marked(
    name: str, places: list[Place], codes: list[ErrorCode]
) -> m.WriteTxnMarkersResponseTopic:
    return m.WriteTxnMarkersResponseTopic(
        name=name,
        partitions=tuple(
            m.WriteTxnMarkersResponsePartition(partition_index=place.number, error_code=code)
            for place, code in zip(places, codes, strict=True)
        ),
    )
