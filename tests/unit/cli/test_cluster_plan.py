"""The plan of a cluster on one machine: what is decided before anything runs."""

from pathlib import Path

import pytest

from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.plan import (
    NODES_MAX,
    Plan,
    Wish,
    etcd_arguments,
    grown,
    new_plan,
    node_arguments,
    ports_needed,
)
from dovetail.errors import Damaged, InvalidInput, NotFound, Unavailable


def plan_of(wish: Wish, known: Plan | None = None) -> Plan:
    """A plan on ports that count up, as the command would make it on free ones."""
    for_clients, for_the_rest = ports_needed(wish, known)
    first = 1000 + (sum(2 for _ in known.processes) if known else 0)
    broker_ports = list(range(first, first + for_clients))
    ports = list(range(first + for_clients, first + for_clients + for_the_rest))
    if known is None:
        return new_plan(wish, broker_ports=broker_ports, ports=ports)
    return grown(known, wish, broker_ports=broker_ports, ports=ports)


def test_the_default_survives_any_one_of_its_processes() -> None:
    """U2: etcd, three storage nodes, three brokers; three copies of which two acknowledge."""
    plan = plan_of(Wish())
    names = [process.name for process in plan.processes]
    assert names == [f"{kind}-{at}" for kind in ("etcd", "storage", "broker") for at in (1, 2, 3)]
    assert (plan.ensemble, plan.write_quorum, plan.ack_quorum) == (3, 3, 2)
    ports = [port for process in plan.processes for port in (process.port, process.side_port)]
    assert len(set(ports)) == len(ports) == 18
    numbers = [process.number for process in plan.processes if process.kind != "etcd"]
    assert len(set(numbers)) == 6
    assert plan.bootstrap == "127.0.0.1:1000,127.0.0.1:1001,127.0.0.1:1002"


def test_a_plan_that_grows_keeps_what_it_had() -> None:
    """U2: more nodes come at the end; the others keep name, number and ports, so their data."""
    plan = plan_of(Wish(brokers=1, storage=2, etcd_members=1))
    more = plan_of(Wish(brokers=3, storage=4), plan)
    assert set(plan.processes) <= set(more.processes)
    assert [p.name for p in more.of_kind("storage")] == [f"storage-{n}" for n in (1, 2, 3, 4)]
    assert len(more.of_kind("broker")) == 3
    assert len(more.of_kind("etcd")) == 1
    assert plan_of(Wish(), more) == more


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(brokers=0), "--brokers 0: 1 to"),
        (Wish(storage=NODES_MAX + 1), f"--storage {NODES_MAX + 1}: 1 to {NODES_MAX}"),
        (Wish(ack_quorum=4), "ack quorum 4 > write quorum 3"),
        (Wish(ensemble=2, write_quorum=3), "write quorum 3 > ensemble 2"),
        (Wish(storage=2, write_quorum=3), "ensemble 3 > 2 storage nodes"),
        (Wish(etcd=("10.0.0.1:2379",), etcd_members=3), "leave out --etcd-members"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_by_its_rule(wish: Wish, told: str) -> None:
    """U7, L2: before anything is written or started."""
    with pytest.raises(InvalidInput, match=told):
        plan_of(wish)


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(brokers=2), "this cluster has 3, and none can be taken away"),
        (Wish(storage=1), "this cluster has 3, and none can be taken away"),
        (Wish(etcd_members=5), "created with 3"),
        (Wish(etcd=("10.0.0.1:2379",)), "keeps its state in the etcd at"),
        (Wish(ensemble=5), "ensemble 5 > 3 storage nodes"),
    ],
)
def test_a_plan_never_loses_what_may_hold_data(wish: Wish, told: str) -> None:
    """U7: a smaller or another cluster in the same folder is refused."""
    with pytest.raises(InvalidInput, match=told):
        plan_of(wish, plan_of(Wish()))


def test_fewer_storage_nodes_mean_fewer_copies() -> None:
    """L2: one storage node holds one copy, and acknowledges alone."""
    plan = plan_of(Wish(storage=1))
    assert (plan.ensemble, plan.write_quorum, plan.ack_quorum) == (1, 1, 1)
    plan = plan_of(Wish(storage=5, write_quorum=5))
    assert (plan.ensemble, plan.write_quorum, plan.ack_quorum) == (5, 5, 3)


def test_an_etcd_that_runs_already_is_used() -> None:
    """U2: --etcd."""
    plan = plan_of(Wish(etcd=("10.0.0.1:2379", "10.0.0.2:2379")))
    assert plan.of_kind("etcd") == []
    arguments = node_arguments(plan, plan.of_kind("broker")[0], data_dir="/d")
    assert not [one for one in arguments if "tls" in one]
    assert "--etcd=10.0.0.1:2379,10.0.0.2:2379" in arguments


def test_what_a_process_is_told() -> None:
    """U2, B1: each node its roles, number and folder; etcd's members each other."""
    plan = plan_of(Wish(assignments=("log.retention_ms=2d",)))
    broker = plan.of_kind("broker")[1]
    arguments = node_arguments(plan, broker, data_dir="/c/broker-2")
    for wanted in ("--roles=overseer,broker", "--node-id=102", "--name=broker-2", "--port=1001"):
        assert wanted in arguments
    assert "--set=log.retention_ms=2d" in arguments
    members = plan.of_kind("etcd")
    told = etcd_arguments(plan, members[0], data_dir="/c/etcd-1")
    peers = ",".join(f"{m.name}=http://127.0.0.1:{m.side_port}" for m in members)
    assert f"--initial-cluster={peers}" in told
    assert "--data-dir=/c/etcd-1" in told


def test_the_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    """U2: numbers and ports outlive the processes."""
    folder, plan = ClusterFolder(tmp_path), plan_of(Wish(config="/etc/d.toml"))
    assert folder.find_plan() is None
    with pytest.raises(NotFound, match="there is no cluster in"):
        folder.plan()
    folder.write_plan(plan)
    assert folder.plan() == plan
    (tmp_path / "cluster.json").write_text('{"processes": 3}')
    with pytest.raises(Damaged, match="is not the plan of a cluster"):
        folder.plan()


def test_two_commands_do_not_start_at_once(tmp_path: Path) -> None:
    """U7: the second one is told why it does nothing."""
    with (
        ClusterFolder(tmp_path).locked(),
        pytest.raises(Unavailable, match="another command"),
        ClusterFolder(tmp_path).locked(),
    ):
        pass
