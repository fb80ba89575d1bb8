"""A node that is killed again and again under load."""

import os
import random

from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory
from tests.process.checker import Workload, check_all

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
