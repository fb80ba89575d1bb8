"""DescribeTopicPartitions: partitions of topics, page by page."""

from dovetail.kafka.codec.schema import Bool, Int16, Int32, String, Uuid, message


@message
class DescribeTopicPartitionsRequestTopic:
    """A topic."""

    name: String


@message
class DescribeTopicPartitionsRequestCursor:
    """The first partition of a page."""

    topic_name: String
    partition_index: Int32


@message
class DescribeTopicPartitionsRequest:
    """About which topics; none is all. The cursor is where the page begins."""

    topics: tuple[DescribeTopicPartitionsRequestTopic, ...]
    response_partition_limit: Int32 = 2000
    cursor: DescribeTopicPartitionsRequestCursor | None = None


@message
class DescribeTopicPartitionsResponsePartition:
    """A partition and its leader; -1 while there is none."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    offline_replicas: tuple[Int32, ...]


@message
class DescribeTopicPartitionsResponseTopic:
    """A topic, or why there is none."""

    error_code: Int16
    name: String | None
    topic_id: Uuid
    is_internal: Bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: Int32 = -2147483648


@message
class DescribeTopicPartitionsResponseCursor:
    """The first partition of the next page."""

    topic_name: String
    partition_index: Int32


@message
class DescribeTopicPartitionsResponse:
    """A page; the next one begins at the cursor, if there is one."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: DescribeTopicPartitionsResponseCursor | None = None
