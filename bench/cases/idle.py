"""What a thousand partitions cost when nobody uses them: processor time of all processes.

Each partition has been written to, so each has an open ledger. Counted are the brokers, the
storage nodes and etcd, over a time in which no client is connected.
"""

import time

from confluent_kafka import Producer

from bench import client
from bench.local_cluster import LocalCluster
from bench.run import Run
from bench.table import Line

_PARTITIONS = 1000
#: What is required, in cores.
_CORES_MAX = 0.15
#: Before counting: checkpoints, registrations and collectors come to rest.
_REST_S = 5.0
_COUNT_S = 30.0


def measure(run: Run) -> list[Line]:
    partitions = run.sized(_PARTITIONS, quick=100)
    with LocalCluster(run.folder / "idle") as cluster:
        run.step(f"creating {partitions} partitions, a record in each")
        topic = client.create_topic(cluster.bootstrap, "idle", partitions=partitions)
        _touch(cluster.bootstrap, topic, partitions)
        rest_s, count_s = (1.0, 5.0) if run.quick else (_REST_S, _COUNT_S)
        run.step("idle")
        time.sleep(rest_s)
        before, started = cluster.cpu_s(), time.perf_counter()
        time.sleep(count_s)
        after, seconds = cluster.cpu_s(), time.perf_counter() - started
    cores = {name: (after[name] - before[name]) / seconds for name in after}
    for name, used in cores.items():
        run.note(f"  {name}: {100 * used:.1f} % of a core")
    kinds = ", ".join(
        f"{kind} {100 * sum(used for name, used in cores.items() if name.startswith(kind)):.1f} %"
        for kind in ("etcd", "storage", "broker")
    )
    return [
        Line(
            "i idle",
            f"{partitions} partitions, all processes",
            sum(cores.values()),
            "cores",
            "limit",
            _CORES_MAX,
            ratio_max=1.0,
            note=f"of one core: {kinds}",
        )
    ]


def _touch(bootstrap: str, topic: str, partitions: int) -> None:
    failures: list[str] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    sender = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for partition in range(partitions):
        sender.produce(topic, b"x", partition=partition, on_delivery=on_delivery)
    missing = sender.flush(client.STALL_S_MAX)
    if failures or missing:
        raise client.NotDelivered(f"{missing} without an answer, refused: {failures[:3]}")
