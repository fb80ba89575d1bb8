"""A TCP proxy before every port, where network namespaces are not to be had.

All proxies run in one thread. Who connects is found by the owner of the connecting socket: the
system's table gives its inode, and the process that has it among its files is the node; whoever
is no node of ours is the client.

A cut way moves no byte and passes no end of a connection on. A new connection is taken by the
kernel, which cannot be helped, and then held in silence; when healed, it is made.

Where it differs from a broken line: one-way, acknowledgements still flow, so that what the open
direction carries is not repeated; and a port behind which nobody listens takes a connection
before it breaks it.
"""

import asyncio
import contextlib
import os
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.compat.loop_thread import LoopThread, stop_accepting
from tests.etcd_server import free_ports
from tests.network_links import CLIENT, Door, Link, Links

_HOST = "127.0.0.1"
_ORDER_SECONDS_MAX = 10
_CHUNK_BYTES = 64 * 1024


class ProxyNetwork:
    """`Network` on proxies."""

    def __init__(self, names: Sequence[str]) -> None:
        self._links = Links(names)
        self._pids: dict[int, str] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = LoopThread()
        self._changed = asyncio.Event()

    def door(self, name: str) -> Door:
        assert name in self._links.names, f"there is no node {name!r}"
        listen_port, port = free_ports(2)
        self._order(self._listen(name, port, listen_port))
        return Door(_HOST, listen_port, _HOST, port)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        yield

    def started(self, name: str, pid: int) -> None:
        others = {known: node for known, node in self._pids.items() if node != name}
        self._pids = {**others, pid: name}

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._order(self._set(self._links.cut | self._links.between(a, b, one_way=one_way)))

    def isolate(self, name: str, *, but: Collection[str] = ()) -> None:
        self._order(self._set(self._links.cut | self._links.around(name, but=but)))

    def heal(self) -> None:
        self._order(self._set(frozenset()))

    def close(self) -> None:
        self._order(self._end())
        self._loop.close()

    def _order(self, work: Coroutine[None, None, None]) -> None:
        self._loop.run(work, _ORDER_SECONDS_MAX)

    async def _set(self, cut: frozenset[Link]) -> None:
        self._links.cut = cut
        self._changed.set()
        self._changed = asyncio.Event()

    async def _listen(self, name: str, port: int, listen_port: int) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving = self._serve(name, listen_port, reader, writer)
            task = asyncio.get_running_loop().create_task(serving)
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            # Not within the task: one that is cancelled before its first step does nothing at all.
            task.add_done_callback(lambda _: writer.transport.abort())

        self._servers.append(await asyncio.start_server(accept, _HOST, port))

    async def _end(self) -> None:
        for server in self._servers:
            await stop_accepting(server)
        while self._connections:
            for task in tuple(self._connections):
                task.cancel()
            await asyncio.wait(self._connections)

    async def _serve(
        self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        here = writer.get_extra_info("sockname")[1]
        source = self._owner(writer.get_extra_info("peername")[1], here)
        # Neither the question for a connection nor its answer passes a cut way.
        await self._passes((source, name))
        await self._passes((name, source))
        try:
            up_reader, up_writer = await asyncio.open_connection(_HOST, port)
        except OSError:
            return
        try:
            await asyncio.gather(
                self._pass_on(reader, up_writer, (source, name)),
                self._pass_on(up_reader, writer, (name, source)),
            )
        finally:
            up_writer.transport.abort()

    async def _passes(self, link: Link) -> None:
        while link in self._links.cut:
            await self._changed.wait()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._passes(link)
                writer.write(data)
                await writer.drain()
        await self._passes(link)
        writer.close()

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


def _inode_of(port: int, remote_port: int) -> str:
    """The inode of the socket that is connected from this local port on loopback to that one.

    A port can be the local one of several sockets at once, closed ones among them. Some libraries
    reach addresses of version 4 through sockets of version 6; the last four bytes are the same.
    """
    local, remote = f"0100007F:{port:04X}", f":{remote_port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(local) and fields[2].endswith(remote):
                return fields[9]
    return ""
