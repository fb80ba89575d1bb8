"""Two replicas: BULLY with a primary that returns, COORDINATOR that a split never makes two."""

from collections.abc import Iterator

import pytest
from tests.conftest import RunningNode
from tests.etcd_server import running_cluster
from tests.process.stream.replicas import Replica, Replicas, running_replicas

from dovetail.election.bully import strength
from dovetail.election.identifiers import MemberName


@pytest.fixture
def two_bullies(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    yield from running_replicas(
        tmp_path_factory.mktemp("bully"), node, count=2, algorithm="BULLY", takeover="skip"
    )


@pytest.fixture
def two_on_etcd(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("lease")
    with running_cluster(folder / "etcd") as etcd:
        yield from running_replicas(
            folder,
            node,
            count=2,
            algorithm="COORDINATOR",
            takeover="skip",
            etcd=etcd.endpoints[0],
        )


def _primary_and_backup(cluster: Replicas) -> tuple[Replica, Replica]:
    first, second = cluster.replicas
    stronger = strength(MemberName(first.name)) > strength(MemberName(second.name))
    return (first, second) if stronger else (second, first)


def test_the_primary_leads_dies_returns_and_takes_over(two_bullies: Replicas) -> None:
    """S4, S8, S9: the backup handles meanwhile, nothing twice; a cut moves nothing."""
    cluster = two_bullies
    primary, backup = _primary_and_backup(cluster)
    cluster.wait(lambda: primary.leads, "the primary leads")
    cluster.wait_handled_by(lambda handled: handled.member == str(primary.number))
    primary.kill()
    cluster.next_leader(primary)
    assert backup.leads
    primary.start()
    cluster.wait(lambda: primary.leads, "the primary takes over")
    cluster.wait(lambda: backup.role == "follower", "the backup follows")
    cluster.wait_handled_by(lambda handled: handled.member == str(primary.number))
    term = primary.term
    cluster.cut((primary.name, backup.name))
    for _ in range(60):
        cluster.wait_handled_by(lambda handled: handled.term == term)
    assert (primary.leads, backup.leads) == (True, False)
    cluster.heal()
    cluster.wait_handled_by(lambda handled: handled.term == term)
    cluster.check_leaders()
    cluster.check_one_term_each()


def test_a_split_never_gives_two_leaders(two_on_etcd: Replicas) -> None:
    """S5, S8, S9: cut from each other, from etcd, paused: one leader a term, no event twice."""
    cluster = two_on_etcd
    leader = cluster.leader()
    (other,) = [r for r in cluster.replicas if r is not leader]
    term = leader.term
    cluster.cut((leader.name, other.name))
    for _ in range(60):
        cluster.wait_handled_by(lambda handled: handled.term == term)
    assert not other.leads
    cluster.cut((leader.name, "etcd"))
    cluster.next_leader(leader)
    cluster.wait(lambda: leader.role != "leader", "the old leader has stopped")
    cluster.heal()
    other.pause()
    cluster.next_leader(other)
    other.wake()
    cluster.wait(lambda: other.role != "leader", "the paused leader has stopped")
    cluster.check_leaders()
    cluster.check_one_term_each()
