"""Which requests are answered, in which versions: the one table.

A request type that is not in `SUPPORTED`, or a version outside its range, is refused before its
body is read.

`lowest` and `highest` bound what is answered; `advertised_lowest` is what ApiVersions reports. They
differ for Produce alone: older librdkafka compresses only if Produce is advertised from version 0,
so Kafka 4 advertises that too, although it answers from version 3 (KAFKA-18659). Where Kafka then
closes the connection, we answer `UNSUPPORTED_VERSION` in the version of the request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.schema import VERSION_MAX

#: Stands for the first flexible version of a request type that has none.
NEVER: Final = VERSION_MAX + 1


class ApiKey(IntEnum):
    """Request types by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


@dataclass(frozen=True, kw_only=True)
class Api:
    """A request type: its messages and its versions, all bounds inclusive."""

    key: ApiKey
    name: str
    lowest: int
    highest: int
    flexible_since: int
    advertised_lowest: int

    @cached_property
    def request(self) -> type[Any]:
        """The message that asks; it has Kafka's name for the request type."""
        return getattr(m, f"{self.name}Request")  # type: ignore[no-any-return]

    @cached_property
    def response(self) -> type[Any]:
        """The message that answers."""
        return getattr(m, f"{self.name}Response")  # type: ignore[no-any-return]

    def answers(self, version: int) -> bool:
        """Whether requests of this version are answered with what they ask for."""
        return self.lowest <= version <= self.highest

    def decodes(self, version: int) -> bool:
        """Whether requests of this version can at least be read, and so refused in kind."""
        return self.advertised_lowest <= version <= self.highest

    def flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return version >= self.flexible_since


def _api(
    name: str,
    *,
    versions: tuple[int, int],
    flexible_since: int,
    advertised_lowest: int | None = None,
) -> Api:
    """A row of the table; the key has Kafka's name for the request type."""
    lowest, highest = versions
    return Api(
        key=ApiKey[re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()],
        name=name,
        lowest=lowest,
        highest=highest,
        flexible_since=flexible_since,
        advertised_lowest=lowest if advertised_lowest is None else advertised_lowest,
    )


_APIS: Final = (
    _api("Produce", versions=(3, 13), flexible_since=9, advertised_lowest=0),
    _api("Fetch", versions=(4, 18), flexible_since=12),
    _api("ListOffsets", versions=(1, 11), flexible_since=6),
    _api("Metadata", versions=(0, 13), flexible_since=9),
    _api("OffsetCommit", versions=(2, 10), flexible_since=8),
    _api("OffsetFetch", versions=(1, 10), flexible_since=6),
    _api("FindCoordinator", versions=(0, 6), flexible_since=3),
    _api("JoinGroup", versions=(0, 9), flexible_since=6),
    _api("Heartbeat", versions=(0, 4), flexible_since=4),
    _api("LeaveGroup", versions=(0, 5), flexible_since=4),
    _api("SyncGroup", versions=(0, 5), flexible_since=4),
    _api("DescribeGroups", versions=(0, 6), flexible_since=5),
    _api("ListGroups", versions=(0, 5), flexible_since=3),
    _api("ApiVersions", versions=(0, 4), flexible_since=3),
    _api("CreateTopics", versions=(2, 7), flexible_since=5),
    _api("DeleteTopics", versions=(1, 6), flexible_since=4),
    _api("DeleteRecords", versions=(0, 2), flexible_since=2),
    _api("InitProducerId", versions=(0, 5), flexible_since=2),
    _api("OffsetForLeaderEpoch", versions=(2, 4), flexible_since=4),
    _api("AddPartitionsToTxn", versions=(0, 5), flexible_since=3),
    _api("AddOffsetsToTxn", versions=(0, 4), flexible_since=3),
    _api("EndTxn", versions=(0, 5), flexible_since=3),
    _api("TxnOffsetCommit", versions=(0, 5), flexible_since=3),
    _api("WriteTxnMarkers", versions=(1, 2), flexible_since=1),
    _api("DescribeProducers", versions=(0, 0), flexible_since=0),
    _api("DescribeTransactions", versions=(0, 0), flexible_since=0),
    # Version 2 has a regular expression, which a client could have us look for until evening.
    _api("ListTransactions", versions=(0, 2), flexible_since=0),
    _api("DescribeConfigs", versions=(1, 4), flexible_since=4),
    _api("AlterConfigs", versions=(0, 2), flexible_since=2),
    _api("CreatePartitions", versions=(0, 3), flexible_since=2),
    _api("DeleteGroups", versions=(0, 2), flexible_since=2),
    _api("IncrementalAlterConfigs", versions=(0, 1), flexible_since=1),
    _api("OffsetDelete", versions=(0, 0), flexible_since=NEVER),
    _api("DescribeCluster", versions=(0, 2), flexible_since=0),
    # After version 0 the client would send bytes without frames.
    _api("SaslHandshake", versions=(1, 1), flexible_since=NEVER),
    _api("SaslAuthenticate", versions=(0, 2), flexible_since=2),
    _api("DescribeAcls", versions=(1, 3), flexible_since=2),
    _api("CreateAcls", versions=(1, 3), flexible_since=2),
    _api("DeleteAcls", versions=(1, 3), flexible_since=2),
    _api("DescribeUserScramCredentials", versions=(0, 0), flexible_since=0),
    _api("AlterUserScramCredentials", versions=(0, 0), flexible_since=0),
    _api("DescribeLogDirs", versions=(1, 5), flexible_since=2),
    _api("ElectLeaders", versions=(0, 2), flexible_since=2),
    _api("AlterPartitionReassignments", versions=(0, 1), flexible_since=0),
    _api("ListPartitionReassignments", versions=(0, 0), flexible_since=0),
    _api("DescribeClientQuotas", versions=(0, 1), flexible_since=1),
    _api("AlterClientQuotas", versions=(0, 1), flexible_since=1),
    _api("DescribeQuorum", versions=(0, 2), flexible_since=0),
    _api("UpdateFeatures", versions=(0, 2), flexible_since=0),
    _api("ConsumerGroupHeartbeat", versions=(0, 1), flexible_since=0),
    _api("ConsumerGroupDescribe", versions=(0, 1), flexible_since=0),
    _api("ListConfigResources", versions=(0, 1), flexible_since=0),
    _api("DescribeTopicPartitions", versions=(0, 0), flexible_since=0),
    _api("ShareGroupHeartbeat", versions=(1, 1), flexible_since=0),
    _api("ShareGroupDescribe", versions=(1, 1), flexible_since=0),
    _api("ShareFetch", versions=(1, 2), flexible_since=0),
    _api("ShareAcknowledge", versions=(1, 2), flexible_since=0),
    _api("DescribeShareGroupOffsets", versions=(0, 1), flexible_since=0),
    _api("AlterShareGroupOffsets", versions=(0, 0), flexible_since=0),
    _api("DeleteShareGroupOffsets", versions=(0, 0), flexible_since=0),
)

SUPPORTED: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _APIS})


def advertised() -> tuple[m.ApiVersionsResponseApi, ...]:
    """The table as ApiVersions sends it."""
    return tuple(advertised_of(api) for api in _APIS)


def advertised_of(api: Api) -> m.ApiVersionsResponseApi:
    """One request type as ApiVersions sends it."""
    return m.ApiVersionsResponseApi(
        api_key=api.key, min_version=api.advertised_lowest, max_version=api.highest
    )
