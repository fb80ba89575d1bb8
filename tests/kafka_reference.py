"""The tables of docs/kafka.md, from the code: every request with its versions, every setting.

What Kafka has, the tables here and in the code say; `tests/compat/test_kafka_names.py` asks a real
Kafka whether that is so.

`python -m tests.kafka_reference --write` writes them; a test fails when they are not up to date.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from dovetail.kafka.codec.apis import SUPPORTED
from dovetail.kafka.handlers.broker_settings import BROKER_SETTINGS
from dovetail.log.groups.types import ConsumerLimits
from dovetail.log.share.group_settings import CONSUMER_SETTINGS, IDLE_SETTINGS, SETTINGS
from dovetail.log.share.types import ShareSettings
from dovetail.log.topic_settings import CONFIG_KEYS, NO_LIMIT, ConfigKey

DOC = Path(__file__).parent.parent / "docs" / "kafka.md"

#: What a broker of Apache Kafka 4.3.0 says that it answers: key, name, versions.
KAFKA = (
    (0, "Produce", 3, 13),
    (1, "Fetch", 4, 18),
    (2, "ListOffsets", 1, 11),
    (3, "Metadata", 0, 13),
    (8, "OffsetCommit", 2, 10),
    (9, "OffsetFetch", 1, 10),
    (10, "FindCoordinator", 0, 6),
    (11, "JoinGroup", 0, 9),
    (12, "Heartbeat", 0, 4),
    (13, "LeaveGroup", 0, 5),
    (14, "SyncGroup", 0, 5),
    (15, "DescribeGroups", 0, 6),
    (16, "ListGroups", 0, 5),
    (17, "SaslHandshake", 0, 1),
    (18, "ApiVersions", 0, 4),
    (19, "CreateTopics", 2, 7),
    (20, "DeleteTopics", 1, 6),
    (21, "DeleteRecords", 0, 2),
    (22, "InitProducerId", 0, 5),
    (23, "OffsetForLeaderEpoch", 2, 4),
    (24, "AddPartitionsToTxn", 0, 5),
    (25, "AddOffsetsToTxn", 0, 4),
    (26, "EndTxn", 0, 5),
    (27, "WriteTxnMarkers", 1, 2),
    (28, "TxnOffsetCommit", 0, 5),
    (29, "DescribeAcls", 1, 3),
    (30, "CreateAcls", 1, 3),
    (31, "DeleteAcls", 1, 3),
    (32, "DescribeConfigs", 1, 4),
    (33, "AlterConfigs", 0, 2),
    (34, "AlterReplicaLogDirs", 1, 2),
    (35, "DescribeLogDirs", 1, 5),
    (36, "SaslAuthenticate", 0, 2),
    (37, "CreatePartitions", 0, 3),
    (38, "CreateDelegationToken", 1, 3),
    (39, "RenewDelegationToken", 1, 2),
    (40, "ExpireDelegationToken", 1, 2),
    (41, "DescribeDelegationToken", 1, 3),
    (42, "DeleteGroups", 0, 2),
    (43, "ElectLeaders", 0, 2),
    (44, "IncrementalAlterConfigs", 0, 1),
    (45, "AlterPartitionReassignments", 0, 1),
    (46, "ListPartitionReassignments", 0, 0),
    (47, "OffsetDelete", 0, 0),
    (48, "DescribeClientQuotas", 0, 1),
    (49, "AlterClientQuotas", 0, 1),
    (50, "DescribeUserScramCredentials", 0, 0),
    (51, "AlterUserScramCredentials", 0, 0),
    (55, "DescribeQuorum", 0, 2),
    (57, "UpdateFeatures", 0, 2),
    (60, "DescribeCluster", 0, 2),
    (61, "DescribeProducers", 0, 0),
    (64, "UnregisterBroker", 0, 0),
    (65, "DescribeTransactions", 0, 0),
    (66, "ListTransactions", 0, 2),
    (68, "ConsumerGroupHeartbeat", 0, 1),
    (69, "ConsumerGroupDescribe", 0, 1),
    (71, "GetTelemetrySubscriptions", 0, 0),
    (72, "PushTelemetry", 0, 0),
    (74, "ListConfigResources", 0, 1),
    (75, "DescribeTopicPartitions", 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (78, "ShareFetch", 1, 2),
    (79, "ShareAcknowledge", 1, 2),
    (80, "AddRaftVoter", 0, 1),
    (81, "RemoveRaftVoter", 0, 0),
    (83, "InitializeShareGroupState", 0, 0),
    (84, "ReadShareGroupState", 0, 0),
    (85, "WriteShareGroupState", 0, 1),
    (86, "DeleteShareGroupState", 0, 0),
    (87, "ReadShareGroupStateSummary", 0, 1),
    (88, "StreamsGroupHeartbeat", 0, 0),
    (89, "StreamsGroupDescribe", 0, 0),
    (90, "DescribeShareGroupOffsets", 0, 1),
    (91, "AlterShareGroupOffsets", 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0),
)


def requests() -> Iterator[str]:
    """A table of the requests that are answered, beside Kafka's versions."""
    yield "| key | request | versions | in Kafka 4.3 |\n|---|---|---|---|\n"
    for key, name, lowest, highest in KAFKA:
        api = SUPPORTED.get(key)
        if api is not None:
            yield (f"| {key} | {name} | {api.lowest} to {api.highest} | {lowest} to {highest} |\n")


def absent() -> Iterator[str]:
    """What Kafka has and a broker here does not answer."""
    yield ", ".join(f"{name} ({key})" for key, name, _, _ in KAFKA if key not in SUPPORTED) + ".\n"


def settings() -> Iterator[str]:
    """A table of the topic settings: first those that do something."""
    yield "| setting | type | values | default | effect | what it does here |\n"
    yield "|---|---|---|---|---|---|\n"
    for effective in (True, False):
        for name, key in sorted(CONFIG_KEYS.items()):
            if key.effective is effective:
                yield (
                    f"| `{name}` | {key.type.name.lower()} | {_wide(key.bounds)} | {_default(key)} "
                    f"| {'yes' if effective else 'none'} | {key.doc} |\n"
                )


def group_settings() -> Iterator[str]:
    """A table of the settings that a group can have of its own."""
    yield "| setting | values | default | what it does here |\n|---|---|---|---|\n"
    for of, defaults in (
        (CONSUMER_SETTINGS, ConsumerLimits()),
        (SETTINGS, ShareSettings()),
        (IDLE_SETTINGS, None),
    ):
        for name, one in sorted(of.items()):
            shown = f"`{one.show(defaults)}`" if one.show(defaults) else "(empty)"
            yield f"| `{name}` | {one.values} | {shown} | {one.doc} |\n"


def broker_settings() -> Iterator[str]:
    """A table of Kafka's settings of a broker that a broker here shows."""
    yield "| setting | what it shows |\n|---|---|\n"
    topics = {key.broker: f"the default of `{key.name}`" for key in CONFIG_KEYS.values()}
    topics.pop("", None)
    shown = topics | {name: one.doc for name, one in BROKER_SETTINGS.items()}
    for name, doc in sorted(shown.items()):
        yield f"| `{name}` | {doc} |\n"


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return "the node's"
    return _wide(f"`{key.default}`") if key.default else "(empty)"


def _wide(text: str) -> str:
    return text.replace(NO_LIMIT, "2^63-1").replace(str(-int(NO_LIMIT) - 1), "-2^63")


PARTS = {
    "requests": requests,
    "absent": absent,
    "settings": settings,
    "group-settings": group_settings,
    "broker-settings": broker_settings,
}


def page(text: str) -> str:
    """The page with its tables as they are now."""
    for name, lines in PARTS.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + "".join(lines()) + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    made = page(DOC.read_text())
    if "--write" in sys.argv:
        DOC.write_text(made)
    else:
        print(made, end="")
