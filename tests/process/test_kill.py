"""A node that is killed again and again under load."""

import os
import random

from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory
from tests.process.checker import Workload, check

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "20"))
PARTITIONS = 3


def test_kill_minus_nine_loses_doubles_and_reorders_nothing(node_factory: NodeFactory) -> None:
    """L4, L6, L9, K4, R2: 20 kills under load; what was acknowledged is there, in order, once."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    # Small ledgers and segments, so that kills hit rolls, seals and trims too.
    node = node_factory(log_ledger_bytes_max="256KiB", storage_segment_bytes="1MiB")
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(30)
    workload = Workload(node.bootstrap, "t", partitions=PARTITIONS)
    workload.start()
    for _ in range(ROUNDS):
        workload.wait_for(workload.acknowledged_count + rng.randint(1, 6_000))
        node.kill()
        node.start()
    workload.finish()
    assert workload.errors == []
    read = sum(check(workload, node.bootstrap, "t", p) for p in range(PARTITIONS))
    assert read == workload.acknowledged_count == sum(workload.sent.values())
    assert read > ROUNDS
    node.stop()
    node.start()
    assert read == sum(check(workload, node.bootstrap, "t", p) for p in range(PARTITIONS))
    assert "met a defect" not in node.log()
    assert "out of service" not in node.log()
