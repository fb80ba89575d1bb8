"""A TCP proxy before every port, where network namespaces are not to be had.

Who connects is found by the owner of the connecting socket: the system's table gives its inode, and
the process that has it among its files is the node; whoever is no node of ours is the client.

Where it differs from a broken line: one-way, acknowledgements still flow, so that what the open
direction carries is not repeated; and a port behind which nobody listens takes a connection
before it breaks it.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from tests.etcd_server import free_ports
from tests.network_links import CLIENT, Links, Listener
from tests.tcp_proxy import HOST, Passage, Proxies

#: Of sock_diag(7).
_NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20


class ProxyNetwork:
    """`Network` on proxies."""

    def __init__(self, names: Sequence[str]) -> None:
        self._links = Links(names)
        self._pids: dict[int, str] = {}
        self._proxies = Proxies()

    def listener(self, name: str) -> Listener:
        assert name in self._links.names, f"there is no node {name!r}"
        listen_port, port = free_ports(2)

        def passage(writer: asyncio.StreamWriter) -> Passage:
            source = self._owner(writer.get_extra_info("peername")[1], port)
            return Passage(f"{HOST}:{listen_port}", client=source, server=name)

        self._proxies.listen(passage, port)
        return Listener(HOST, listen_port, HOST, port)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        yield

    def started(self, name: str, pid: int) -> None:
        others = {known: node for known, node in self._pids.items() if node != name}
        self._pids = {**others, pid: name}

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._links.cut |= self._links.between(a, b, one_way=one_way)
        self._proxies.hold(self._links.cut)

    def isolate(self, name: str, *, but: Collection[str] = ()) -> None:
        self._links.cut |= self._links.around(name, but=but)
        self._proxies.hold(self._links.cut)

    def heal(self) -> None:
        self._links.cut = frozenset()
        self._proxies.hold(())

    def close(self) -> None:
        self._proxies.close()

    def _owner(self, port: int, remote_port: int) -> str:
        """The node whose process has the socket with this local and this remote port."""
        inode = _inode_of(port, remote_port)
        wanted = f"socket:[{inode}]"
        for pid, name in self._pids.items():
            with contextlib.suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{number}") == wanted:
                            return name
        return CLIENT


def _inode_of(port: int, remote_port: int) -> int:
    """The inode of the socket that is connected from this local port on loopback to that one.

    The system is asked for this one (sock_diag(7)): its whole table takes 50 ms to read on a busy
    machine, and all proxies wait meanwhile. It also finds sockets of version 6 that reach addresses
    of version 4. 0 if there is none.
    """
    loopback = socket.inet_aton(HOST) + bytes(12)
    ports = struct.pack(">HH", port, remote_port)
    anyone = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    wanted = struct.pack("=BBHI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    body = wanted + ports + loopback * 2 + anyone
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as system:
        system.send(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, 1, 1, 0) + body)
        answer = system.recv(4096)
    if struct.unpack_from("=H", answer, 4)[0] != _BY_FAMILY:
        return 0
    return int(struct.unpack_from("=I", answer, 84)[0])
