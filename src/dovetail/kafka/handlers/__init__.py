"""Turns requests into calls of the log and its groups, and results into responses.

    front.py         from a frame to an answer: the table of handlers; the wire room calls it
    backend.py       the log, groups and services that handlers call
    produce.py       Produce and InitProducerId
    transactions.py  AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit
    transaction_admin.py  ListTransactions, DescribeTransactions, DescribeProducers, WriteTxnMarkers
    transaction_codes.py  maps decisions of a transaction coordinator to Kafka's codes
    fetch.py         Fetch: from memory, from storage, or a long poll at the end of the log
    fetch_sessions.py  which partitions a consumer reads, so that it names them once
    metadata.py      Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator
    offsets.py       ListOffsets, OffsetForLeaderEpoch, DeleteRecords
    topics.py        CreateTopics, DeleteTopics, CreatePartitions
    log_dirs.py      DescribeLogDirs
    reassignment.py  ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments
    quotas.py        DescribeClientQuotas, AlterClientQuotas
    features.py      UpdateFeatures, DescribeQuorum
    configs.py       settings of topics, groups and the node
    broker_settings.py  a broker's settings under Kafka's names
    groups.py        JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    consumer_groups.py  ConsumerGroupHeartbeat, ConsumerGroupDescribe
    group_admin.py   ListGroups, DescribeGroups, DeleteGroups
    positions.py     OffsetCommit, OffsetFetch, OffsetDelete
    group_codes.py   maps decisions of a group coordinator to Kafka's codes
    share/           share groups
    sasl.py          a client's login
    users.py         users and their passwords
    acls.py          access rules

One module per noun. A handler takes the `Backend`, the `Call` and the decoded body, and returns the
body of the response. A failure becomes one of Kafka's error codes (`codec.error_codes`), for the
item that it concerns. Handlers never see bytes.
"""

from dovetail.kafka.handlers.backend import Backend, BrokerAddress, Call, KafkaMetrics, Told
from dovetail.kafka.handlers.front import KafkaDispatch

__all__ = ["Backend", "BrokerAddress", "Call", "KafkaDispatch", "KafkaMetrics", "Told"]
