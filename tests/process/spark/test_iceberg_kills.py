"""`dovetail archive --format iceberg`, killed at random moments and run again."""

import os
import random
import select
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode
from tests.java import need_java

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
from pyiceberg.table import StaticTable

RECORDS = 1_000
#: Records of one commit: a run has many, and a kill falls into any part of one.
COMMIT_RECORDS = 50
KILLS = int(os.environ.get("ICEBERG_KILLS", "1"))
#: For one run, with the start of Java on a loaded machine.
RUN_S_MAX = 250

pytestmark = pytest.mark.timeout((KILLS + 1) * RUN_S_MAX)

ARCHIVE = """
import sys
from dovetail.kafka.client.brokers import Brokers
from dovetail.spark import iceberg, session
bootstrap, topic, folder, rows = sys.argv[1:]
spark = session("archive", master="local[2]", spark__driver__extraJavaOptions="-XX:+UseSerialGC")
done = iceberg.archive(
    spark, Brokers(bootstrap), topic, iceberg.Place(folder), rows_max=int(rows)
)
print(done.metadata)
"""


@pytest.fixture(scope="module")
def topic(node: RunningNode) -> str:
    name = f"i-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=2)])[name].result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for n in range(RECORDS):
        producer.produce(name, value=f"{n}")
    assert producer.flush(30) == 0
    return name


def archive(node: RunningNode, topic: str, lake: Path) -> subprocess.Popen[str]:
    """A process that archives, with Java and workers in a group of its own."""
    words = [node.bootstrap, topic, str(lake), str(COMMIT_RECORDS)]
    with _log(lake).open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", ARCHIVE, *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _log(lake: Path) -> Path:
    """What the last process said."""
    return lake.with_name("archive.log")


def test_a_killed_archive_leaves_each_record_once(
    node: RunningNode, topic: str, tmp_path: Path
) -> None:
    """T13: kill -9 while files are written and committed, at moments that a seed chooses; what
    PyIceberg reads by the table's metadata, after a run to the end, is each record once."""
    need_java()
    seed = int(os.environ.get("ICEBERG_SEED", str(random.getrandbits(32))))
    print(f"ICEBERG_SEED={seed}")
    moments = random.Random(seed)
    lake = tmp_path / "lake"
    for _ in range(KILLS):
        before = _files(lake)
        running = archive(node, topic, lake)
        try:
            # A commit makes about a dozen: data, its checksums, manifests, the metadata.
            _wait_for_files(running, lake, before + moments.randrange(10, 60))
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()

    last = archive(node, topic, lake)
    try:
        metadata, _ = last.communicate(timeout=RUN_S_MAX)
    finally:
        if last.poll() is None:
            os.killpg(last.pid, signal.SIGKILL)
    assert last.returncode == 0, _log(lake).read_text()[-3000:]

    rows = StaticTable.from_metadata(metadata.strip().splitlines()[-1]).scan().to_arrow()
    counted = Counter(int(value) for value in rows.column("value").to_pylist())
    assert set(counted) == set(range(RECORDS))
    assert {n: times for n, times in counted.items() if times > 1} == {}


def _files(folder: Path) -> int:
    """How many there are; folders come and go meanwhile."""
    return sum(len(files) for _, _, files in os.walk(folder))


def _wait_for_files(running: subprocess.Popen[str], folder: Path, count: int) -> None:
    assert running.stdout is not None
    deadline = time.monotonic() + RUN_S_MAX
    while _files(folder) < count:
        assert running.poll() is None, f"over before it was killed: {_log(folder).read_text()}"
        assert time.monotonic() < deadline, f"{_files(folder)} files, not {count}"
        # It says nothing before it ends.
        select.select([running.stdout], [], [], 0.01)
