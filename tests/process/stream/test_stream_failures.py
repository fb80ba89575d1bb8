"""The source's list of failures, with real processes: killed, paused, cut; counted by a checker."""

from collections.abc import Iterator

import httpx
import pytest
from tests.conftest import RunningNode
from tests.process.stream.replicas import Replicas, running_replicas


@pytest.fixture(scope="module")
def resuming(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Three replicas, MAJORITY, resume, two attempts; each test leaves them whole."""
    yield from running_replicas(
        tmp_path_factory.mktemp("resuming"),
        node,
        count=3,
        algorithm="MAJORITY",
        takeover="resume",
        attempts_max=2,
    )


@pytest.fixture(scope="module")
def skipping(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Three replicas, MAJORITY, skip."""
    yield from running_replicas(
        tmp_path_factory.mktemp("skipping"), node, count=3, algorithm="MAJORITY", takeover="skip"
    )


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test all replicas run, nothing is cut, and what must hold has held."""
    yield
    for name in ("resuming", "skipping"):
        if name in request.fixturenames:
            _make_whole(request.getfixturevalue(name))


def _make_whole(cluster: Replicas) -> None:
    cluster.heal()
    for replica in cluster.replicas:
        if not replica.alive:
            replica.start()
    cluster.wait(lambda: all(r.role for r in cluster.replicas), "all replicas are back")
    cluster.leader()
    cluster.check_leaders()
    if cluster.takeover == "resume":
        cluster.check_all_handled()
        cluster.check_poison_is_set_aside()
    else:
        cluster.check_one_term_each()


def test_the_leader_dies(resuming: Replicas) -> None:
    """S8, S9, S12: kill -9; another one goes on, no event is lost, and what fails is set aside."""
    leader = resuming.leader()
    leader.kill()
    resuming.next_leader(leader)


def test_the_leader_is_paused_and_wakes(resuming: Replicas) -> None:
    """S8: it wakes in the middle of what it did, gives way, and its term is not used again."""
    leader = resuming.leader()
    leader.pause()
    resuming.next_leader(leader)
    leader.wake()
    resuming.wait(lambda: leader.role == "follower", "the old leader follows")


def test_the_leader_loses_the_network(resuming: Replicas) -> None:
    """S8: neither members nor stream nor log; it stops by itself."""
    leader = resuming.leader()
    others = [r.name for r in resuming.replicas if r is not leader]
    resuming.cut(*((leader.name, other) for other in [*others, "stream", "log"]))
    resuming.next_leader(leader)
    resuming.wait(lambda: leader.role != "leader", "the old leader has stopped")


def test_the_leader_loses_the_stream_only(resuming: Replicas) -> None:
    """S8: it hears the others and they hear it; they see events that it does not."""
    leader = resuming.leader()
    resuming.cut((leader.name, "stream"))
    resuming.next_leader(leader)
    resuming.wait(lambda: leader.role != "leader", "the old leader has stopped")


def test_the_leader_loses_the_members_only(resuming: Replicas) -> None:
    """S8: it reads in the log that another one leads, and gives way."""
    leader = resuming.leader()
    others = [r.name for r in resuming.replicas if r is not leader]
    resuming.cut(*((leader.name, other) for other in others))
    resuming.next_leader(leader)
    resuming.wait(lambda: leader.role != "leader", "the old leader has stopped")


def test_split_in_two_with_the_leader_in_the_larger_part(resuming: Replicas) -> None:
    """S8: the leader stays in charge within its set; the one outside gets no majority."""
    leader = resuming.leader()
    outside, inside = (r for r in resuming.replicas if r is not leader)
    term = leader.term
    resuming.cut((outside.name, leader.name), (outside.name, inside.name))
    resuming.wait(lambda: outside.role == "candidate", "the one outside stands, in vain")
    resuming.wait(lambda: outside.role == "follower", "and gives up")
    resuming.wait_handled_by(lambda handled: handled.term == term)
    resuming.heal()
    resuming.wait_handled_by(lambda handled: handled.term == term)


def test_split_in_three_parts(resuming: Replicas) -> None:
    """S8: nobody reaches a majority, so nobody leads; after healing one does."""
    names = [r.name for r in resuming.replicas]
    resuming.leader()
    resuming.cut((names[0], names[1]), (names[0], names[2]), (names[1], names[2]))
    resuming.wait(
        lambda: not any(r.leads for r in resuming.replicas), "nobody leads in three parts"
    )
    resuming.heal()
    resuming.leader()


def test_health_shows_role_term_and_leader(resuming: Replicas) -> None:
    """S11: over HTTP, for every replica; and metrics beside it."""
    leader = resuming.leader()
    for replica in resuming.replicas:
        port = replica._given["settings"]["listen_port"]
        facts = httpx.get(f"http://127.0.0.1:{port}/health").json()
        assert facts["leader"] == leader.name
        assert facts["term"] == leader.term
        assert (facts["role"] == "leader") == (replica is leader)
        assert len(facts["members"]) == 3
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert f"dovetail_election_leading {float(replica is leader)}" in metrics


def test_skip_handles_nothing_under_two_terms(skipping: Replicas) -> None:
    """S8, S9: killed, paused, and left with the stream only, which is the worst."""
    leader = skipping.leader()
    leader.kill()
    second = skipping.next_leader(leader)
    leader.start()
    second.pause()
    third = skipping.next_leader(second)
    second.wake()
    skipping.wait(lambda: second.role == "follower", "the paused leader follows")
    others = [r.name for r in skipping.replicas if r is not third]
    skipping.wait(lambda: all(r.role for r in skipping.replicas), "all replicas are back")
    skipping.cut(*((third.name, other) for other in [*others, "log"]))
    skipping.next_leader(third)
