"""Produce with three copies of which two acknowledge, against one node with one copy.

The same client, the same 100-byte messages, one partition; every round measures both, and the best
of each counts. On two cores the cluster shares them among client, broker and three storage nodes,
each of which writes and syncs every byte: the ratio says what three copies cost on one machine.
"""

from bench import client
from bench.local_cluster import LocalCluster
from bench.node import Node
from bench.run import Run
from bench.table import Line

_BYTES = 100
#: What is required.
_PART_OF_ONE_NODE = 0.35


def measure(run: Run) -> list[Line]:
    messages = run.sized(1_000_000, quick=100_000)
    one_node, cluster_rate, consumed = 0.0, 0.0, 0.0
    for at in range(run.rounds):
        run.step("one node, one copy")
        with Node(run.folder / f"one-{at}") as node:
            one_node = max(one_node, _produce(node.bootstrap, messages)[0])
        run.step("three storage nodes, three copies")
        with LocalCluster(run.folder / f"three-{at}") as cluster:
            rate, topic = _produce(cluster.bootstrap, messages)
            cluster_rate = max(cluster_rate, rate)
            span = client.consume(cluster.bootstrap, topic, messages=messages)
            consumed = max(consumed, messages / span.seconds)
        run.note(f"  best so far: one node {one_node:,.0f}, cluster {cluster_rate:,.0f} messages/s")
    case, unit = "f cluster", "messages/s"
    return [
        Line(
            case,
            "produce, acks=all, idempotent, 3 copies, 2 acknowledge",
            cluster_rate,
            unit,
            "one node, one copy, same client",
            one_node,
            ratio_min=_PART_OF_ONE_NODE,
        ),
        Line(case, "consume", consumed, unit),
    ]


def _produce(bootstrap: str, messages: int) -> tuple[float, str]:
    """Messages a second, and the topic that has them. A short run before it makes connections."""
    topic = client.create_topic(bootstrap, "cluster")
    client.produce(bootstrap, topic, messages=1000, message_bytes=_BYTES, idempotent=True)
    span = client.produce(
        bootstrap, topic, messages=messages - 1000, message_bytes=_BYTES, idempotent=True
    )
    return (messages - 1000) / span.seconds, topic
