"""Requests to effects on the log and its groups, and back to responses.

    front.py         from a frame to an answer: the table of handlers; the wire room calls it
    backend.py       what handlers work on
    produce.py       Produce and InitProducerId
    transactions.py  AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit
    transaction_admin.py  ListTransactions, DescribeTransactions, DescribeProducers, WriteTxnMarkers
    transaction_codes.py  what a coordinator of transactions decided, as Kafka's codes
    fetch.py         Fetch: from memory, from storage, or a long poll at the end of the log
    fetch_sessions.py  which partitions a consumer reads, so that it names them once
    metadata.py      Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator
    offsets.py       ListOffsets, OffsetForLeaderEpoch, DeleteRecords
    topics.py        CreateTopics, DeleteTopics, CreatePartitions
    log_dirs.py      DescribeLogDirs
    reassignment.py  ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments
    quotas.py        DescribeClientQuotas, AlterClientQuotas
    features.py      UpdateFeatures, DescribeQuorum
    configs.py       settings of topics and of the node
    broker_settings.py  what a broker's settings are under Kafka's names
    groups.py        JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    consumer_groups.py  ConsumerGroupHeartbeat, ConsumerGroupDescribe
    group_admin.py   ListGroups, DescribeGroups, DeleteGroups
    positions.py     OffsetCommit, OffsetFetch, OffsetDelete
    group_codes.py   what a group's coordinator decided, as Kafka's codes
    share/           share groups
    sasl.py          the login of a client
    users.py         who can log in
    acls.py          access rules

One module a noun. A handler takes the `Backend`, the `Call` and the decoded body, and returns the
body of the response. What goes wrong becomes one of Kafka's error codes (`codec.error_codes`), for
the item that it concerns. Handlers know no bytes.
"""

from dovetail.kafka.handlers.backend import Backend, BrokerAddress, Call, KafkaMetrics, Told
from dovetail.kafka.handlers.front import KafkaDispatch

__all__ = ["Backend", "BrokerAddress", "Call", "KafkaDispatch", "KafkaMetrics", "Told"]
