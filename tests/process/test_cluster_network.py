"""The networks of the tests, tested: both kinds keep the same promises."""

import contextlib
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import network_peer, warm_python
from tests.network_links import CLIENT, Links, Network, open_network
from tests.network_namespaces import namespaces_work

#: How long silence is listened to. Too short can hide a leak, never raise a false alarm.
SILENCE_S = 0.4
ANSWER_S_MAX = 60.0


class Peer:
    """One process that talks."""

    def __init__(self, network: Network, name: str) -> None:
        self.listener = network.listener(name)
        self._said: queue.Queue[str] = queue.Queue()
        with network.inside(name):
            self._process = warm_python.Popen(
                [
                    sys.executable,
                    network_peer.__file__,
                    self.listener.listen_host,
                    str(self.listener.listen_port),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        network.started(name, self._process.pid)
        threading.Thread(target=self._read, daemon=True).start()
        self.expect("listening")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._said.put(line.strip())

    def order(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def connect(self, other: "Peer", *, order: str = "connect") -> None:
        self.order(f"{order} {other.listener.host} {other.listener.port}")

    def expect(self, text: str) -> None:
        assert self._said.get(timeout=ANSWER_S_MAX) == text

    def is_silent(self) -> bool:
        with contextlib.suppress(queue.Empty):
            raise AssertionError(f"heard {self._said.get(timeout=SILENCE_S)!r} through a cut")
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


KINDS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(
            not namespaces_work(), reason="network namespaces need root and CAP_NET_ADMIN"
        ),
    ),
    "proxies",
]


@pytest.fixture(params=KINDS)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with open_network(["a", "b", "c"], kind=request.param) as made:
        yield made


@pytest.fixture
def peers(network: Network) -> Iterator[dict[str, Peer]]:
    made: dict[str, Peer] = {}
    try:
        for name in ("a", "b", "c"):
            made[name] = Peer(network, name)
        yield made
    finally:
        for peer in made.values():
            peer.kill()


def join(source: Peer, target: Peer) -> None:
    source.connect(target)
    source.expect("connected")
    target.expect("met")


def test_a_cut_is_silent_and_healing_delivers(network: Network, peers: dict[str, Peer]) -> None:
    """R2: nothing passes and nobody is told; other ways stay open; then what waited arrives."""
    a, b, c = peers["a"], peers["b"], peers["c"]
    join(a, b)
    join(c, b)
    network.cut("a", "b")
    a.order("say one")
    assert b.is_silent()
    c.order("say two")
    b.expect("heard two")
    network.heal()
    b.expect("heard one")
    assert a.is_silent()


def test_a_one_way_cut(network: Network, peers: dict[str, Peer]) -> None:
    """R2: what a sends is lost, what b sends arrives."""
    a, b = peers["a"], peers["b"]
    join(a, b)
    network.cut("a", "b", one_way=True)
    a.order("say up")
    b.order("say down")
    a.expect("heard down")
    assert b.is_silent()
    network.heal()
    b.expect("heard up")


@pytest.mark.parametrize("order", ["connect", "connect6"])
def test_a_connection_is_not_refused_but_unanswered(
    network: Network, peers: dict[str, Peer], order: str
) -> None:
    """R2: one that is begun across a cut is made when it is healed, and never reset."""
    a, b = peers["a"], peers["b"]
    network.isolate("b", but=(CLIENT,))
    a.connect(b, order=order)
    assert b.is_silent()
    network.heal()
    b.expect("met")
    a.expect("connected")


def test_death_behind_a_cut_is_not_seen(network: Network, peers: dict[str, Peer]) -> None:
    """R2: the end of a connection does not pass either."""
    a, b = peers["a"], peers["b"]
    join(a, b)
    network.cut("a", "b")
    b.kill()
    assert a.is_silent()
    network.heal()
    a.order("say hello")
    a.expect("parted")


def test_the_test_itself_is_a_node(network: Network, peers: dict[str, Peer]) -> None:
    """R2: clients can be cut off too, and an isolation can leave them out."""
    a, b = peers["a"], peers["b"]
    with socket.create_connection((b.listener.host, b.listener.port), timeout=ANSWER_S_MAX) as mine:
        b.expect("met")
        network.isolate("b", but=(CLIENT,))
        mine.sendall(b"one\n")
        b.expect("heard one")
        a.connect(b)
        assert b.is_silent()
        network.cut(CLIENT, "b")
        mine.sendall(b"two\n")
        assert b.is_silent()
        network.heal()
        heard = {b._said.get(timeout=ANSWER_S_MAX) for _ in range(2)}
        assert heard == {"met", "heard two"}


def test_nothing_is_left_behind() -> None:
    """R2: also after a failure inside; the machine's own network is as it was."""
    before = _interfaces(), _namespaces()
    with pytest.raises(ZeroDivisionError), open_network(["a", "b"]) as network:
        network.cut("a", "b")
        raise ZeroDivisionError
    assert (_interfaces(), _namespaces()) == before


def test_a_cut_names_nodes_that_there_are() -> None:
    """A misspelt name would be a cut that is not there."""
    links = Links(["a", "b"])
    with pytest.raises(AssertionError, match="no node 'x'"):
        links.between("a", "x", one_way=False)
    assert links.around("a", but=()) == {("a", "b"), ("b", "a"), ("a", CLIENT), (CLIENT, "a")}


def _interfaces() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def _namespaces() -> list[str]:
    return sorted(path.name for path in Path("/run/netns").glob("*"))
