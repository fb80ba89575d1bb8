"""Transactions: add partitions and positions, end, write markers, list and describe."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, Int64, String, Wire, message


@message
class TransactionTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[Int32, ...]


@message
class TransactionPartitionResult:
    """What became of one partition."""

    partition_index: Int32
    partition_error_code: Int16


@message
class TransactionTopicResult:
    """What became of the partitions of one topic."""

    name: String
    results_by_partition: tuple[TransactionPartitionResult, ...]


# AddPartitionsToTxn


@message
class AddPartitionsToTxnRequestTransaction:
    """One transaction, as a broker names it; with `verify_only` nothing is added."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Bool = False
    topics: tuple[TransactionTopic, ...]


@message
class AddPartitionsToTxnRequest:
    """One transaction of a client up to version 3, several of a broker from 4."""

    transactions: Annotated[tuple[AddPartitionsToTxnRequestTransaction, ...], Wire(since=4)] = ()
    v3_and_below_transactional_id: Annotated[String, Wire(until=3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Wire(until=3)] = -1
    v3_and_below_producer_epoch: Annotated[Int16, Wire(until=3)] = -1
    v3_and_below_topics: Annotated[tuple[TransactionTopic, ...], Wire(until=3)] = ()


@message
class AddPartitionsToTxnResponseTransaction:
    """What became of one transaction's partitions."""

    transactional_id: String
    topic_results: tuple[TransactionTopicResult, ...]


@message
class AddPartitionsToTxnResponse:
    """What became of each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=4)] = 0
    results_by_transaction: Annotated[
        tuple[AddPartitionsToTxnResponseTransaction, ...], Wire(since=4)
    ] = ()
    results_by_topic_v3_and_below: Annotated[tuple[TransactionTopicResult, ...], Wire(until=3)] = ()


# AddOffsetsToTxn


@message
class AddOffsetsToTxnRequest:
    """Positions of a group join a transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@message
class AddOffsetsToTxnResponse:
    """Whether they did."""

    throttle_time_ms: Int32 = 0
    error_code: Int16


# EndTxn


@message
class EndTxnRequest:
    """Commit, or abort; from version 5 the epoch grows with it (KIP-890)."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@message
class EndTxnResponse:
    """Who the producer is from now on, from version 5."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, Wire(since=5)] = -1
    producer_epoch: Annotated[Int16, Wire(since=5)] = -1


# TxnOffsetCommit


@message
class TxnOffsetCommitRequestPartition:
    """A position."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Wire(since=2)] = -1
    committed_metadata: String | None


@message
class TxnOffsetCommitRequestTopic:
    """Positions in one topic."""

    name: String
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@message
class TxnOffsetCommitRequest:
    """Positions that count from the end of a transaction on."""

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Wire(since=3)] = -1
    member_id: Annotated[String, Wire(since=3)] = ""
    group_instance_id: Annotated[String | None, Wire(since=3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@message
class TxnOffsetCommitResponsePartition:
    """What became of a position."""

    partition_index: Int32
    error_code: Int16


@message
class TxnOffsetCommitResponseTopic:
    """What became of the positions in one topic."""

    name: String
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@message
class TxnOffsetCommitResponse:
    """What became of each position."""

    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...]


# WriteTxnMarkers


@message
class WriteTxnMarkersRequestTopic:
    """Partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@message
class WriteTxnMarkersRequestMarker:
    """The end of one producer's transaction; `transaction_result` is true for a commit."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: tuple[WriteTxnMarkersRequestTopic, ...]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Wire(since=2)] = 0


@message
class WriteTxnMarkersRequest:
    """Ends transactions in partitions; an operator's tool sends it for one that hangs."""

    markers: tuple[WriteTxnMarkersRequestMarker, ...]


@message
class WriteTxnMarkersResponsePartition:
    """Whether the marker is stored."""

    partition_index: Int32
    error_code: Int16


@message
class WriteTxnMarkersResponseTopic:
    """What became of the partitions of one topic."""

    name: String
    partitions: tuple[WriteTxnMarkersResponsePartition, ...]


@message
class WriteTxnMarkersResponseMarker:
    """What became of one marker."""

    producer_id: Int64
    topics: tuple[WriteTxnMarkersResponseTopic, ...]


@message
class WriteTxnMarkersResponse:
    """What became of each marker."""

    markers: tuple[WriteTxnMarkersResponseMarker, ...]


# DescribeProducers


@message
class DescribeProducersRequestTopic:
    """Partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@message
class DescribeProducersRequest:
    """Who writes to partitions."""

    topics: tuple[DescribeProducersRequestTopic, ...]


@message
class DescribeProducersResponseProducer:
    """One producer; the start of its open transaction is -1 if it has none."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@message
class DescribeProducersResponsePartition:
    """The producers of one partition."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = None
    active_producers: tuple[DescribeProducersResponseProducer, ...] = ()


@message
class DescribeProducersResponseTopic:
    """The producers of one topic."""

    name: String
    partitions: tuple[DescribeProducersResponsePartition, ...]


@message
class DescribeProducersResponse:
    """The producers of each partition."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeProducersResponseTopic, ...]


# DescribeTransactions


@message
class DescribeTransactionsRequest:
    """Transactional ids that are to be described."""

    transactional_ids: tuple[String, ...]


@message
class DescribeTransactionsResponseTopic:
    """Partitions that a transaction has written to."""

    topic: String
    partitions: tuple[Int32, ...]


@message
class DescribeTransactionsResponseTransaction:
    """One transactional id."""

    error_code: Int16
    transactional_id: String
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    topics: tuple[DescribeTransactionsResponseTopic, ...] = ()


@message
class DescribeTransactionsResponse:
    """Each transactional id."""

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribeTransactionsResponseTransaction, ...]


# ListTransactions


@message
class ListTransactionsRequest:
    """The transactional ids of a broker; empty filters mean all."""

    state_filters: tuple[String, ...]
    producer_id_filters: tuple[Int64, ...]
    duration_filter: Annotated[Int64, Wire(since=1)] = -1
    transactional_id_pattern: Annotated[String | None, Wire(since=2)] = None


@message
class ListTransactionsResponseTransaction:
    """One transactional id."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


@message
class ListTransactionsResponse:
    """What was found, and filters that mean nothing."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: tuple[String, ...] = ()
    transaction_states: tuple[ListTransactionsResponseTransaction, ...] = ()
