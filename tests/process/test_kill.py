"""A node that is killed again and again under load."""

import os
import random
import time

from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory
from tests.process.checker import Workload, check_all, check_compacted

#: Kills; `make soak` has hundreds.
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "6"))
PARTITIONS = 3


def test_kill_minus_nine_loses_doubles_and_reorders_nothing(node_factory: NodeFactory) -> None:
    """L4, L6, L9, K4, R2: kills under load; what was acknowledged is there, in order, once."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    # Small ledgers and segments, so that kills hit rolls, seals and trims too.
    node = node_factory(log_ledger_bytes_max="64KiB", storage_segment_bytes="1MiB")
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(30)
    workload = Workload(node.bootstrap, "t", partitions=PARTITIONS)
    workload.start()
    for _ in range(ROUNDS):
        workload.wait_for(workload.acknowledged_count + rng.randint(1, 2_000))
        node.kill()
        node.start()
    workload.finish()
    assert workload.errors == []
    read = check_all(workload, node.bootstrap)
    assert read == workload.acknowledged_count
    assert read > ROUNDS
    node.stop()
    node.start()
    assert check_all(workload, node.bootstrap) == read
    assert "met a defect" not in node.log()
    assert "out of service" not in node.log()


def test_kill_minus_nine_in_the_middle_of_compaction(node_factory: NodeFactory) -> None:
    """L17, L4, K4: the last record of each key is there, whatever a pass was doing."""
    rng = random.Random(seed := random.SystemRandom().randrange(1 << 32))
    print(f"seed={seed}")
    node = node_factory(log_compaction_check_ms="20", log_retention_check_ms="20")
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    config = {"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0"}
    admin.create_topics([NewTopic("c", 2, config=config)])["c"].result(30)
    workload = Workload(node.bootstrap, "c", partitions=2, keys=50)
    workload.start()
    for _ in range(ROUNDS // 2):
        workload.wait_for(workload.acknowledged_count + rng.randint(500, 1_500))
        node.kill()
        node.start()
    workload.finish()
    assert workload.errors == []

    deadline = time.monotonic() + 60
    while check_compacted(workload, node.bootstrap) > 2 * 50:
        assert time.monotonic() < deadline, "it is not compacted in the end"
    node.stop()
    node.start()
    assert check_compacted(workload, node.bootstrap) == 2 * 50
    assert "met a defect" not in node.log()
    assert "out of service" not in node.log()
