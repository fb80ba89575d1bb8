"""Every option of Spark's Kafka source and sink, and what becomes of it here."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.doc_pages import DOCS

from dovetail.errors import InvalidInput
from dovetail.spark import given_options
from dovetail.spark.offsets import enough
from dovetail.spark.option_list import BY_NAME, OPTIONS, look_up, table
from dovetail.spark.options import ReadOptions, WriteOptions

AT = {"kafka.bootstrap.servers": "h:1"}
READ = AT | {"subscribe": "t"}

#: Of KafkaSourceProvider in Spark 4, by the names of its guide.
OF_SPARK = (
    "assign subscribe subscribePattern startingOffsets endingOffsets startingTimestamp "
    "endingTimestamp startingOffsetsByTimestamp endingOffsetsByTimestamp "
    "startingOffsetsByTimestampStrategy failOnDataLoss kafkaConsumer.pollTimeoutMs "
    "fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger "
    "minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix "
    "kafka.group.id includeHeaders kafka.bootstrap.servers topic"
)


def test_every_option_of_sparks_source_is_known() -> None:
    """T20, F74: by its name, on its side; none twice."""
    for name in OF_SPARK.split():
        assert BY_NAME[name.lower()].name == name
        assert BY_NAME[name.lower()].kind != "refused"
    assert len({one.name.lower() for one in OPTIONS}) == len(OPTIONS)


def test_every_setting_of_kafkas_clients_is_known(tmp_path: Path) -> None:
    """T20, F74: as Kafka's own classes list them."""
    kafka = pytest.importorskip("bench.peers.kafka")
    from bench.peers.server import PeerMissing

    try:
        java, jars = kafka.java(), kafka.jars()
    except PeerMissing as error:
        pytest.skip(str(error))
    source = tmp_path / "Names.java"
    source.write_text(
        "public class Names { public static void main(String[] none) {"
        "org.apache.kafka.clients.consumer.ConsumerConfig.configNames().forEach(n ->"
        ' System.out.println("read " + n));'
        "org.apache.kafka.clients.producer.ProducerConfig.configNames().forEach(n ->"
        ' System.out.println("write " + n)); } }'
    )
    done = subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(source)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    named = [line.split() for line in done.stdout.splitlines()]
    assert len(named) > 150
    missing = [
        name
        for side, name in named
        if not name.startswith("internal.")
        and (f"kafka.{name}" not in BY_NAME or BY_NAME[f"kafka.{name}"].side not in (side, "both"))
    ]
    assert not missing


def test_the_page_has_the_list() -> None:
    """T20: the table of docs/spark.md is the list in the code (`python -m
    dovetail.spark.option_list` prints it)."""
    page = (DOCS / "spark.md").read_text()
    assert "\n".join(table()) in page


def test_options_have_their_meaning() -> None:
    """T20: sizes and time-outs go where they decide."""
    read = ReadOptions.of(
        READ
        | {
            "kafka.fetch.max.bytes": "9000",
            "kafka.max.partition.fetch.bytes": "8000",
            "kafka.fetch.min.bytes": "7",
            "kafka.fetch.max.wait.ms": "50",
            "kafkaConsumer.pollTimeoutMs": "1500",
            "kafka.request.timeout.ms": "2000",
            "kafka.default.api.timeout.ms": "4000",
            "kafka.socket.connection.setup.timeout.ms": "700",
            "kafka.client.id": "shop",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2m",
            "maxRecordsPerPartition": "100",
            "kafka.isolation.level": "read_committed",
        }
    )
    sizes, manners = read.sizes, read.manners
    assert (sizes.bytes_max, sizes.bytes_min, sizes.wait_ms) == (8000, 7, 50)
    assert sizes.patience_s == 1.5
    assert (manners.request_s, manners.timeout_s, manners.connect_s) == (2.0, 4.0, 0.7)
    assert manners.client_id == "shop"
    assert (read.rows_min, read.delay_ms_max, read.task_rows_max) == (10, 120_000, 100)
    assert read.committed

    write = WriteOptions.of(
        AT
        | {
            "kafka.compression.type": "zstd",
            "kafka.compression.zstd.level": "9",
            "kafka.compression.gzip.level": "3",
            "kafka.batch.size": "16384",
            "kafka.partitioner.ignore.keys": "true",
            "kafka.delivery.timeout.ms": "5000",
        }
    )
    assert (write.codec, write.level, write.batch_bytes_max) == (4, 9, 16_384)
    assert write.ignore_keys
    assert write.manners.timeout_s == 5.0


def test_an_option_without_effect_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """T20: taken, with one line in the log that says why."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(given_options, "_told", set())
    monkeypatch.setattr(given_options, "_log", _Recorded(lines))
    for _ in range(3):
        ReadOptions.of(READ | {"groupIdPrefix": "shop", "kafka.receive.buffer.bytes": "1"})
    assert [line["option"] for line in lines] == ["groupIdPrefix", "kafka.receive.buffer.bytes"]
    assert all(line["why"] for line in lines)


class _Recorded:
    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def warning(self, message: str, /, **fields: Any) -> None:
        self._lines.append(fields)


def test_misspelt_options_get_the_nearest_name() -> None:
    """T20: for every option, a letter left out or two swapped."""
    for one in OPTIONS:
        for wrong in (one.name[:-1], one.name[:-2] + one.name[-1] + one.name[-2]):
            if wrong.lower() in BY_NAME:
                continue
            with pytest.raises(InvalidInput, match="did you mean"):
                look_up(wrong, "read", both_sides=True)


def test_a_stream_waits_for_enough() -> None:
    """T20: minOffsetsPerTrigger and maxTriggerDelay."""
    limits: dict[str, Any] = {"rows_min": 10, "delay_ms_max": 100}
    assert enough(3, waited_ms=None, **limits), "the first read waits for nothing"
    assert not enough(9, waited_ms=99, **limits)
    assert enough(10, waited_ms=0, **limits)
    assert enough(1, waited_ms=100, **limits)
    assert enough(1, rows_min=None, waited_ms=0, delay_ms_max=100)
