"""Teams and their front end on a real Apache Kafka: all that needs no timeline."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

pytest.importorskip("pyspark")
from tests.java import need_java
from tests.kafka_server import KafkaServer, running_kafka
from tests.process.teams.kill_graph import plain
from tests.process.teams.kills import Brokers, Faults, Masters, Outcomes, run_with_faults

from dovetail.errors import OffsetOutOfRange
from dovetail.kafka.client import brokers as addresses
from dovetail.kafka.client.client import KafkaClient
from dovetail.spark.fetching import fetch
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


def test_the_first_submit_on_fresh_topics_is_stored(kafka: KafkaServer) -> None:
    """F7c, T8: a broker that does not lead a new partition yet is asked again."""
    for number in range(10):
        pipeline = Pipeline(f"fresh{number}", Team("a", int, workers=8))
        create_topics(pipeline, kafka.bootstrap)
        with FrontEnd(pipeline, kafka.bootstrap) as front:
            found = front.submit_many(range(40), [f"j{n}" for n in range(40)])
            assert len({(one.place, one.offset) for one in found}) == 40
            assert not list(front.results(follow=False))
            assert not front.is_repetition(found[7])
            again = front.submit(1, "j7")
            assert front.is_repetition(again)


def test_a_position_that_is_not_held_is_told_with_what_is(kafka: KafkaServer) -> None:
    """F7c: also where the broker's answer does not say it."""
    pipeline = Pipeline("bounds", Team("a", int))
    create_topics(pipeline, kafka.bootstrap)
    topic = pipeline.topics().input
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"1")
    assert producer.flush(30) == 0
    client = KafkaClient(addresses.Brokers(kafka.bootstrap))
    with pytest.raises(OffsetOutOfRange, match="it holds 0 to 1"):
        list(fetch(client, (topic, 0), 17, 18))
    client.close()


def test_every_job_has_one_outcome_on_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    """T2, T5, T7: the broker, workers, functions and a driver's Java are killed, and a driver
    sleeps."""
    need_java()
    assert not plain.has_delays, "Kafka has no timelines"
    create_topics(plain, kafka.bootstrap)

    def kill_one(_chance: random.Random) -> str:
        kafka.kill()
        kafka.start()
        return "Kafka"

    where = "tests.process.teams.kill_graph:plain"
    masters = Masters(where, kafka.bootstrap, tmp_path, spark="local[2]")
    outcomes = Outcomes(plain, kafka.bootstrap)
    try:
        faults = Faults(Brokers(kafka.bootstrap, kill_one), masters, outcomes)
        kinds = [faults.pause_driver, faults.kill_broker, faults.kill_worker, faults.kill_function]
        plan = [*faults.plan(kinds), lambda: faults.kill_java(replace=False)]
        faults.tell(f"{masters.leader().name} leads; {len(plan)} faults to come")
        run_with_faults(plain, kafka.bootstrap, faults, plan, outcomes)
    finally:
        outcomes.close()
        masters.end()
