"""Apache Kafka's command-line tools, against a node and against a real Kafka 4.3 beside it.

Each line below is a call of a tool. What it prints and how it ends is the same on both, apart from
what differs from one cluster to the next (addresses, ids, times, rates) and from the text behind
the name of an error. What they answer differently on purpose is in `OURS`, with what a node says.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.compat.kafka_tools import MAINS, Said, Tools
from tests.compat.server import Node
from tests.kafka_server import running_kafka

SCENES = {
    "topics": """
        topics --create --topic t1 --partitions 2 --config retention.ms=100000
        topics --create --topic t1
        topics --create --topic t1 --if-not-exists
        topics --create --topic t1x --config nope=1
        topics --create --topic t1x --replication-factor 3
        topics --describe --topic t1
        topics --describe --topic nope
        topics --describe --under-replicated-partitions
        topics --alter --topic t1 --partitions 3
        topics --alter --topic t1 --partitions 1
        topics --list
        topics --delete --topic nope
        topics --delete --topic t1
    """,
    "configs": """
        topics --create --topic t2 --config cleanup.policy=compact
        configs --describe --entity-type topics --entity-name t2
        configs --describe --entity-type topics --entity-name nope
        configs --alter --entity-type topics --entity-name t2 --add-config segment.ms=7000
        configs --alter --entity-type topics --entity-name t2 --delete-config segment.ms
        configs --alter --entity-type topics --entity-name t2 --add-config nope=1
        configs --alter --entity-type topics --entity-name t2 --add-config retention.ms=x
        configs --alter --entity-type clients --entity-name c1 --add-config producer_byte_rate=1024
        configs --describe --entity-type clients --entity-name c1
        configs --alter --entity-type users --entity-name u1 --add-config ...
        SCRAM-SHA-256=[password=pw]
        configs --describe --entity-type users --entity-name u1
        configs --alter --entity-type groups --entity-name g1 --add-config ...
        share.auto.offset.reset=earliest
        configs --describe --entity-type groups --entity-name g1
        configs --describe --entity-type brokers --entity-name 1
        configs --describe --entity-type ips
        configs --describe --entity-type client-metrics
        configs --alter --entity-type brokers --entity-name 1 --add-config log.cleaner.threads=2
        configs --alter --entity-type ips --entity-name 127.0.0.1 --add-config ...
        connection_creation_rate=10
    """,
    "records": """
        topics --create --topic t3
        console-producer --topic t3 --reader-property parse.key=true --reader-property ...
        key.separator=: << k1:v1 k2:v2 k3:v3
        console-consumer --topic t3 --from-beginning --max-messages 3 --formatter-property ...
        print.key=true
        console-consumer --topic t3 --from-beginning --max-messages 2 --group readers
        get-offsets --topic t3
        get-offsets --topic t3 --time -2
        get-offsets --topic nope
        log-dirs --describe --topic-list t3
        delete-records --offset-json-file {folder}/delete.json
        get-offsets --topic t3 --time earliest
        leader-election --election-type preferred --topic t3 --partition 0
        leader-election --election-type preferred --all-topic-partitions
        transactions list
        transactions describe --transactional-id nope
        transactions describe-producers --topic t3 --partition 0
        transactions find-hanging --broker-id 1
    """,
    "groups": """
        topics --create --topic t4
        console-producer --topic t4 << v1 v2 v3
        console-consumer --topic t4 --from-beginning --max-messages 2 --group g4
        consumer-groups --list
        groups --list
        consumer-groups --describe --group g4
        consumer-groups --describe --group g4 --members
        consumer-groups --describe --group g4 --state
        consumer-groups --describe --group nope
        consumer-groups --reset-offsets --group g4 --topic t4 --to-earliest --dry-run
        consumer-groups --reset-offsets --group g4 --topic t4 --to-earliest --execute
        consumer-groups --describe --group g4 --offsets
        consumer-groups --delete-offsets --group g4 --topic t4
        consumer-groups --delete --group g4
        consumer-groups --delete --group nope
        streams-groups --list
        streams-application-reset --application-id app1 --force
    """,
    "share groups": """
        topics --create --topic t5
        console-producer --topic t5 << v1 v2 v3
        configs --alter --entity-type groups --entity-name s5 --add-config ...
        share.auto.offset.reset=earliest
        console-share-consumer --topic t5 --group s5 --max-messages 3 --timeout-ms 60000
        share-groups --list
        share-groups --describe --group s5 --offsets
        share-groups --describe --group s5 --state
        share-groups --describe --group s5 --members
        share-groups --describe --group nope
        share-groups --reset-offsets --group s5 --topic t5 --to-earliest --execute
        share-groups --delete-offsets --group s5 --topic t5
        share-groups --delete --group s5
    """,
    "cluster": """
        acls --list
        acls --add --allow-principal User:bob --operation Read --topic t1
        features describe
        features upgrade --feature share.version=1
        metadata-quorum describe --status
        metadata-quorum describe --replication
        cluster cluster-id
        cluster list-endpoints
        cluster unregister --id 7
        client-metrics --list
        client-metrics --describe
        client-metrics --alter --name m1 --metrics org.apache --interval 10000
        broker-api-versions
        delegation-tokens --describe --command-config /dev/null
    """,
    "reassignment": """
        topics --create --topic t6
        reassign-partitions --execute --reassignment-json-file {folder}/move.json
        reassign-partitions --verify --reassignment-json-file {folder}/move.json
        reassign-partitions --list
        reassign-partitions --cancel --reassignment-json-file {folder}/move.json
        reassign-partitions --generate --topics-to-move-json-file {folder}/topics.json ...
        --broker-list 1
    """,
    "performance": """
        topics --create --topic t7
        producer-perf-test --topic t7 --num-records 100 --record-size 10 --throughput -1
        consumer-perf-test --topic t7 --num-records 100
        e2e-latency --topic t7 --num-records 3 --producer-acks all --record-size 10
        verifiable-producer --topic t7 --max-messages 3
        verifiable-consumer --topic t7 --group-id vc --max-messages 3 --reset-policy earliest
    """,
}

#: By the beginning of a call: what a node answers on purpose where Kafka answers something else.
OURS = {
    "configs --alter --entity-type brokers": "settings of brokers are in the node's settings file",
    "configs --alter --entity-type ips": "connections are limited by kafka.connections_max",
    # Kafka counts what was accepted some seconds later.
    "share-groups --describe --group s5 --offsets": "t5              0          3             0",
    "cluster unregister": "does not support the broker unregistration API",
    "client-metrics --alter": "only topics and groups can be changed here",
    "broker-api-versions": "Fetch(1): 4 to 18 [usable: 18]",
    "delegation-tokens": "UnsupportedVersionException",
}

#: These print times and rates.
_FIGURES = re.compile("(producer-perf|consumer-perf|e2e|verifiable|metadata-quorum|.*producers)")

#: What a line may hold that is another's on every cluster, and what stands for it.
_PLACES = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"^.*?(\w+Exception): .*$", r"\1"),
        (r"^(Error while executing [\w ]+) ?:.*$", r"\1"),
        (r"((?:TopicId|Cluster ?I[dD]): +)\S+", r"\1X"),
        (r" synonyms=\{.*\}", ""),
        (r"min.insync.replicas=1,?", ""),
        (r'\["\w+://[^"]+"\]', "[X]"),
        (r'("logDir":|"log_dirs":\[)"/[^"]+"', r"\1X"),
        (r"console-consumer-\d+", "console-consumer-X"),
        (r"perf-consumer-\d+", "perf-consumer-X"),
        (r" +Epoch: \d+", ""),
        (r'"size":\d+', '"size":N'),
    )
]

#: Stack traces, what this way of calling adds, what the verifiable producer says when it likes,
#: internal topics, and features of Kafka alone.
_LEFT_OUT = re.compile(
    r"^(\s+at |\s+\.\.\. |Caused by|SLF4J|Picked up|exit \d|Tools\$Ended|.*producer_send_success|__"
    r"|Feature: (?!group|share|transaction))"
)


class Beside(NamedTuple):
    """Both servers, and the tools."""

    node: str
    kafka: str
    tools: Tools


@pytest.fixture(scope="module")
def beside(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    folder = tmp_path_factory.mktemp("tools")
    with running_kafka(folder / "kafka") as kafka, Tools(folder / "tools.log") as tools:
        yield Beside(node.bootstrap, kafka.bootstrap, tools)


def told(bootstrap: str, line: str, said: Said) -> tuple[int, list[str]]:
    """How a tool ended and what it printed, without what is a cluster's own."""
    port = bootstrap.rpartition(":")[2]
    found = []
    for text in (said.output + "\n" + said.errors).splitlines():
        if _LEFT_OUT.match(text):
            continue
        text = text.replace(bootstrap, "ADDRESS").replace(port, "PORT")
        for pattern, place in _PLACES:
            text = pattern.sub(place, text)
        if _FIGURES.match(line):
            text = re.sub(r"-?\d+([.:]\d+)*(E-\d+)?", "N", text)
        found.append(re.sub(r"\s+", " ", text).strip())
    return said.code, sorted(filter(None, found))


def calls(scene: str) -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\.\.\.\n +", "", scene).strip().splitlines():
        call, _, given = line.strip().partition(" << ")
        yield call, given.replace(" ", "\n")


@pytest.mark.usefixtures("node_only")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", SCENES)
def test_kafkas_tools_print_what_they_print_of_kafka(
    scene: str, beside: Beside, tmp_path: Path
) -> None:
    """K13, K14, F88: every tool, call by call, beside a real Kafka."""
    for name, text in {
        "delete": '{"version":1,"partitions":[{"topic":"t3","partition":0,"offset":2}]}',
        "move": '{"version":1,"partitions":[{"topic":"t6","partition":0,"replicas":[1]}]}',
        "topics": '{"version":1,"topics":[{"topic":"t6"}]}',
    }.items():
        (tmp_path / f"{name}.json").write_text(text)

    differences = []
    for call, given in calls(SCENES[scene]):
        line = call.replace("{folder}", str(tmp_path))
        kafkas = told(beside.kafka, line, beside.tools.call(beside.kafka, line, given))
        answer = beside.tools.call(beside.node, line, given)
        ours = told(beside.node, line, answer)
        on_purpose = next((text for key, text in OURS.items() if call.startswith(key)), None)
        if on_purpose is not None:
            if on_purpose not in answer.output + answer.errors:
                differences.append(f"{call}\n  node {answer}")
        elif ours != kafkas:
            differences.append(f"{call}\n  Kafka {kafkas}\n  node  {ours}")
    assert not differences, "\n".join(differences)


def test_every_tool_is_called() -> None:
    """K13: none of those that can be run is forgotten."""
    called = {call.split()[0] for scene in SCENES.values() for call, _ in calls(scene)}
    assert set(MAINS) == called
