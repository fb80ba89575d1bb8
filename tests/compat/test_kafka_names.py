"""What Apache Kafka 4.3 names, asked of a real one: requests with their versions, and settings.

`tests.kafka_reference` and the tables of settings in the code say what Kafka has; here they are
held against it.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.compat.raw import RawClient
from tests.kafka_reference import KAFKA
from tests.kafka_server import running_kafka

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.broker_settings import BROKER_SETTINGS
from dovetail.log.share.group_settings import ALL_SETTINGS
from dovetail.log.topic_settings import CONFIG_KEYS

_TOPIC, _BROKER, _GROUP = 2, 4, 32

#: Requests of client telemetry (KIP-714), which Kafka names only with a plug-in that receives it.
_TELEMETRY = {71, 72}

_KAFKAS_DEFAULTS = {
    # Here there is no limit unless one is set: see the setting's text.
    "message.timestamp.after.max.ms": "3600000",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with (
        running_kafka(tmp_path_factory.mktemp("kafka")) as server,
        RawClient(server.bootstrap) as client,
    ):
        yield client


def described(kafka: RawClient, kind: int, name: str) -> dict[str, Any]:
    wanted = m.DescribeConfigsRequestResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    deadline = time.monotonic() + 30
    while True:
        (found,) = kafka.ask(m.DescribeConfigsRequest(resources=(wanted,))).results
        # The controller answers that a topic is there before this broker has heard of it.
        if found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() > deadline:
            break
    assert found.error_code == ErrorCode.NONE, found
    return {one.name: one for one in found.configs}


def test_every_request_and_version_of_kafka_is_in_the_table(kafka: RawClient) -> None:
    """K13: the table of docs/kafka.md says what Kafka 4.3 answers."""
    answer = kafka.ask(
        m.ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    )
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    # Kafka names Produce from 0 on, and refuses what is older than 3, as we do.
    wanted = {key: (lowest if key else 0, highest) for key, _, lowest, highest in KAFKA}
    assert told == {key: versions for key, versions in wanted.items() if key not in _TELEMETRY}


def test_every_topic_setting_of_kafka_is_ours(kafka: RawClient) -> None:
    """K12: by name and type, and with Kafka's default where a node does not set it."""
    made = m.CreateTopicsRequestTopic(
        name="t", num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    answer = kafka.ask(m.CreateTopicsRequest(topics=(made,), timeout_ms=30_000))
    assert answer.topics[0].error_code == ErrorCode.NONE, answer
    theirs = described(kafka, _TOPIC, "t")
    ours = {name: key for name, key in CONFIG_KEYS.items() if not name.startswith("dovetail.")}
    assert theirs.keys() == ours.keys()
    assert {n: one.config_type for n, one in theirs.items()} == {
        name: int(key.type) for name, key in ours.items()
    }
    defaults = {name: key.default for name, key in ours.items() if key.default is not None}
    kafkas = {name: theirs[name].value for name in defaults}
    assert kafkas == defaults | _KAFKAS_DEFAULTS


def test_every_group_setting_of_kafka_is_ours(kafka: RawClient) -> None:
    """K9, K10, K12: all but those of streams groups; dead letters are newer than Kafka 4.3."""
    theirs = {name for name in described(kafka, _GROUP, "g") if not name.startswith("streams.")}
    assert theirs == {name for name in ALL_SETTINGS if not name.startswith("errors.")}


def test_every_broker_setting_that_is_shown_is_kafkas(kafka: RawClient) -> None:
    """K13: no tool is told of a setting that Kafka does not have."""
    defaults = {key.broker for key in CONFIG_KEYS.values() if key.broker}
    assert defaults | BROKER_SETTINGS.keys() <= described(kafka, _BROKER, "1").keys()
