"""A network between the processes of a test that can be cut, one way or both.

What every implementation promises:
- a node has a name; its ports are `Listener`s, at which others reach it by one address;
- `cut` stops everything between two nodes without telling either: connections stay open and
  silent, new ones get no answer, no reset is sent. One-way, only what `a` sends is lost;
- `heal` ends all cuts: what waited is delivered, as TCP would after a real outage;
- the test itself is a node, `CLIENT`, and can be cut off as well;
- `close` leaves nothing behind, whatever happened before.

    network_namespaces.py    a network namespace for each node; needs root
    network_proxies.py       a TCP proxy before every port; works everywhere

`open_network` takes the first if the machine allows it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tests.tcp_proxy import Link

#: The test itself, as a node of the network.
CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of a node: where it listens, and where others reach it."""

    listen_host: str
    listen_port: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Network(Protocol):
    """Nodes by name, with ways between them."""

    def listener(self, name: str) -> Listener:
        """A port that the node will listen on."""
        ...

    def inside(self, name: str) -> AbstractContextManager[None]:
        """Sockets and processes that this thread makes inside are the node's."""
        ...

    def started(self, name: str, pid: int) -> None:
        """Says which process is the node now."""
        ...

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing passes from `a` to `b` any more, nor back unless `one_way`."""
        ...

    def isolate(self, name: str, *, but: Collection[str] = ()) -> None:
        """Cuts a node off from all others, except those in `but`."""
        ...

    def heal(self) -> None:
        """Everything passes again."""
        ...

    def close(self) -> None:
        """Takes the network down."""
        ...


class Links:
    """Which ways are cut; pure."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = (*names, CLIENT)
        self.cut: frozenset[Link] = frozenset()
        assert len(set(self.names)) == len(self.names), f"a name is taken twice: {self.names}"

    def between(self, a: str, b: str, *, one_way: bool) -> frozenset[Link]:
        """The ways that a cut between two nodes adds."""
        for name in (a, b):
            assert name in self.names, f"there is no node {name!r} in {self.names}"
        assert a != b, f"{a} cannot be cut off from itself"
        return frozenset({(a, b)} if one_way else {(a, b), (b, a)}) - self.cut

    def around(self, name: str, *, but: Collection[str]) -> frozenset[Link]:
        """The ways that an isolation adds."""
        others = [other for other in self.names if other != name and other not in but]
        return frozenset().union(*(self.between(name, other, one_way=False) for other in others))


@contextmanager
def open_network(names: Sequence[str], *, kind: str = "") -> Iterator[Network]:
    """A network of the best kind that works here, or of the one that is asked for."""
    from tests.network_namespaces import NamespaceNetwork, namespaces_work
    from tests.network_proxies import ProxyNetwork

    network: Network
    if kind == "proxies" or (not kind and not namespaces_work()):
        network = ProxyNetwork(names)
    else:
        network = NamespaceNetwork(names)
    try:
        yield network
    finally:
        network.close()
