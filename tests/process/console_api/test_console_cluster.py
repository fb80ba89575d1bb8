"""The API of a cluster: any broker answers for all of it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_until
from tests.console_kit import WAIT_SECONDS_MAX


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    one_copy = {"log_ensemble": "1", "log_write_quorum": "1", "log_ack_quorum": "1"}
    with running_cluster(folder, brokers=2, storage=1, network="proxies", **one_copy) as found:
        yield found


def client_of(cluster: ClusterProcesses, name: str) -> httpx.Client:
    url = f"http://127.0.0.1:{cluster.http_port(name)}"
    return httpx.Client(base_url=url, timeout=WAIT_SECONDS_MAX)


def test_any_broker_answers_for_the_whole_cluster(cluster: ClusterProcesses) -> None:
    """U5: both show the same topics with owners, and take changes for partitions of the other."""
    with client_of(cluster, "broker-1") as first, client_of(cluster, "broker-2") as second:
        made = first.post("/v1/topics", json={"topic": "orders", "partitions": 4})
        assert made.status_code == 201, made.text

        def owners(client: httpx.Client) -> list[int | None]:
            shown = client.get("/v1/topics/orders")
            if shown.status_code != 200:
                return []
            return [partition["leader"] for partition in shown.json()["partitions"]]

        wait_until("all have owners", lambda: owners(first) == owners(second) != [])
        assert set(owners(first)) <= {101, 102}
        for partition in range(4):
            body = {"value": f"v{partition}", "partition": partition}
            stored = second.post("/v1/topics/orders/messages", json=body)
            assert stored.status_code == 201, stored.text
        for client, number in ((first, 101), (second, 102)):
            page = client.get("/v1/topics/orders/messages").json()
            assert {m["value"]["data"] for m in page["messages"]} == {"v0", "v1", "v2", "v3"}
            shown = client.get("/v1/topics/orders").json()
            assert shown["records"] == 4
            for partition in shown["partitions"]:
                assert partition["bytes_complete"] == (partition["leader"] == number)
            assert all(p["ensemble"] == [1] for p in shown["partitions"])
            nodes = {node["name"]: node for node in client.get("/v1/overview").json()["nodes"]}
            assert set(nodes) == {"broker-1", "broker-2", "storage-1"}
            assert nodes["storage-1"]["roles"] == ["storage"]
        moved = first.post(
            "/v1/groups/billing/reset", json={"to": "earliest", "topics": ["orders"]}
        )
        assert moved.status_code == 200, moved.text
        assert second.get("/v1/groups/billing").json()["lag"] == 4
        timelines = first.get("/v1/timelines").json()
        assert timelines["enabled"] is False
        assert "postgres" in timelines["reason"] or "serves no timelines" in timelines["reason"]


def test_a_storage_node_says_whom_to_ask(cluster: ClusterProcesses) -> None:
    """U7: it serves no topics, and names a broker that does; its own health it tells."""
    with client_of(cluster, "storage-1") as storage:
        answer = storage.get("/v1/topics")
        assert answer.status_code == 503
        assert "ask http://" in answer.json()["error"]["message"]
        assert storage.get("/v1/overview").json()["totals"]["topics"] is None


def test_a_dead_broker_hides_nothing_of_the_other(cluster: ClusterProcesses) -> None:
    """U5, F87: what has no owner is told so at once; then the other one owns it all, and the one
    that is missing is told of."""
    cluster.kill("broker-2")
    with client_of(cluster, "broker-1") as first:

        def missing() -> list[str]:
            overview = first.get("/v1/overview").json()
            found = [row for row in overview["attention"] if "is not there" in row["what"]]
            assert (not found) or overview["health"] == "failing"
            return [row["where"] for row in found]

        wait_until("broker-2 is missed", lambda: missing() == ["broker-2"])

        def all_mine() -> bool:
            shown = first.get("/v1/topics/orders")
            assert shown.status_code == 200, shown.text
            return {p["leader"] for p in shown.json()["partitions"]} == {101}

        wait_until("taken over", all_mine)
        wait_until(
            "records are known", lambda: first.get("/v1/topics/orders").json()["records"] == 4
        )
