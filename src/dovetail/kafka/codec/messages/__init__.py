"""Every Kafka message that Dovetail speaks, one dataclass each, grouped by noun.

    access.py          the bit field of allowed operations
    acls.py            DescribeAcls, CreateAcls, DeleteAcls
    api_versions.py    ApiVersions
    cluster.py         DescribeCluster
    configs.py         DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources
    features.py        UpdateFeatures, DescribeQuorum
    consumer_groups.py  ConsumerGroupHeartbeat, ConsumerGroupDescribe
    fetch.py           Fetch
    group_admin.py     DescribeGroups, ListGroups, DeleteGroups
    group_offsets.py   OffsetCommit, OffsetFetch, OffsetDelete
    groups.py          FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    leaders.py         the new leader that comes with a "not leader" error (KIP-951)
    log_dirs.py        DescribeLogDirs
    metadata.py        Metadata
    offsets.py         ListOffsets, OffsetForLeaderEpoch, DeleteRecords
    produce.py         Produce
    producers.py       InitProducerId
    quotas.py          DescribeClientQuotas, AlterClientQuotas
    reassignment.py    ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments
    sasl.py            SaslHandshake, SaslAuthenticate
    share_groups.py    ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge,
                       Describe-, Alter- and DeleteShareGroupOffsets
    topic_partitions.py  DescribeTopicPartitions
    topics.py          CreateTopics, DeleteTopics, CreatePartitions
    transactions.py    AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit,
                       WriteTxnMarkers, DescribeProducers, DescribeTransactions, ListTransactions
    users.py           DescribeUserScramCredentials, AlterUserScramCredentials

Names of messages and fields are Kafka's, in snake case; nested structs are named after the
message that holds them. `dovetail.kafka.codec.schema` says how to read a declaration. All messages
are here under their names; `apis` finds those of a request type by it. A module is imported when
one of its messages is first asked for: a command of the command line needs three of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.kafka.codec.messages.access import *
    from dovetail.kafka.codec.messages.acls import *
    from dovetail.kafka.codec.messages.api_versions import *
    from dovetail.kafka.codec.messages.cluster import *
    from dovetail.kafka.codec.messages.configs import *
    from dovetail.kafka.codec.messages.consumer_groups import *
    from dovetail.kafka.codec.messages.features import *
    from dovetail.kafka.codec.messages.fetch import *
    from dovetail.kafka.codec.messages.group_admin import *
    from dovetail.kafka.codec.messages.group_offsets import *
    from dovetail.kafka.codec.messages.groups import *
    from dovetail.kafka.codec.messages.leaders import *
    from dovetail.kafka.codec.messages.log_dirs import *
    from dovetail.kafka.codec.messages.metadata import *
    from dovetail.kafka.codec.messages.offsets import *
    from dovetail.kafka.codec.messages.produce import *
    from dovetail.kafka.codec.messages.producers import *
    from dovetail.kafka.codec.messages.quotas import *
    from dovetail.kafka.codec.messages.reassignment import *
    from dovetail.kafka.codec.messages.sasl import *
    from dovetail.kafka.codec.messages.share_groups import *
    from dovetail.kafka.codec.messages.topic_partitions import *
    from dovetail.kafka.codec.messages.topics import *
    from dovetail.kafka.codec.messages.transactions import *
    from dovetail.kafka.codec.messages.users import *

#: How the names in each module begin.
_NAMES = {
    "access": ("AUTHORIZED_OPERATIONS_ABSENT",),
    "acls": ("AclFilter", "DescribeAcls", "CreateAcls", "DeleteAcls"),
    "api_versions": ("ApiVersions",),
    "cluster": ("DescribeCluster",),
    "configs": (
        "DescribeConfigs",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "ListConfigResources",
    ),
    "consumer_groups": ("ConsumerGroup",),
    "features": ("UpdateFeatures", "DescribeQuorum"),
    "fetch": ("Fetch",),
    "group_admin": ("DescribeGroups", "ListGroups", "DeleteGroups"),
    "group_offsets": (
        "OffsetCommit",
        "OffsetFetch",
        "OffsetDelete",
        "OffsetPartition",
        "OffsetTopic",
    ),
    "groups": ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
    "leaders": ("LeaderIdAndEpoch", "LEADER_UNKNOWN", "NodeEndpoint"),
    "log_dirs": ("DescribeLogDirs",),
    "metadata": ("Metadata",),
    "offsets": ("ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
    "produce": ("Produce",),
    "producers": ("InitProducerId",),
    "quotas": ("DescribeClientQuotas", "AlterClientQuotas"),
    "reassignment": ("ElectLeaders", "AlterPartitionReassign", "ListPartitionReassign"),
    "sasl": ("Sasl",),
    "share_groups": ("Share", "DescribeShare", "AlterShare", "DeleteShare"),
    "topic_partitions": ("DescribeTopicPartitions",),
    "topics": ("CreateTopics", "DeleteTopics", "CreatePartitions"),
    "transactions": (
        *("Transaction", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
        *("WriteTxnMarkers", "DescribeProducers", "DescribeTransactions", "ListTransactions"),
    ),
    "users": ("DescribeUserScram", "AlterUserScram"),
}


def __getattr__(name: str) -> Any:
    for module, begins in _NAMES.items():
        if name.startswith(begins):
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"no message is named {name!r}")
