"""A network namespace for each node, joined by a bridge in a namespace of its own.

    hub ── bridge ─┬─ p1 ═ eth0   node 1    10.77.0.1
                   ├─ p2 ═ eth0   node 2    10.77.0.2
                   └─ p3 ═ eth0   client    10.77.0.3    (the thread of the test)

All addresses and links live inside the namespaces made here; the machine's own network has no part
in it, and no packet leaves. A way is cut at its sender, by a permanent neighbour entry with a
hardware address that nobody has: frames go out and reach no one, as on a broken line. A blackhole
route would not do: it tells the sender (EINVAL).

The thread that makes the network stays in the client's namespace until `close`, and with it the
threads and processes that it starts.
"""

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.network_links import CLIENT, Links, Listener
from tests.tcp_proxy import Link

_PREFIX = "dvt"
_NOBODY = "02:00:00:00:00:fe"
_CLONE_NEWNET = 0x40000000
#: Below what the kernel gives to outgoing connections.
_PORT_FIRST = 20_001
_RUN_SECONDS_MAX = 30
_FOLDER = Path("/run/netns")

_libc = ctypes.CDLL(None, use_errno=True)
_counter = itertools.count(1)


@functools.cache
def namespaces_work() -> bool:
    """Whether this machine and user may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        NamespaceNetwork(["probe"]).close()
    except (OSError, subprocess.SubprocessError):
        return False
    return True


class NamespaceNetwork:
    """`Network` on namespaces."""

    def __init__(self, names: Sequence[str]) -> None:
        _sweep()
        self._links = Links(names)
        self._stem = f"{_PREFIX}-{os.getpid()}-{next(_counter)}"
        self._host = {name: f"10.77.0.{at}" for at, name in enumerate(self._links.names, start=1)}
        self._ports = dict.fromkeys(self._links.names, _PORT_FIRST)
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            self._make()
            self._enter(CLIENT)
        except BaseException:
            self.close()
            raise

    def _namespace(self, name: str) -> str:
        return f"{self._stem}-{name}"

    def _make(self) -> None:
        hub = self._namespace("hub")
        for name in ("hub", *self._links.names):
            _run("ip", "netns", "add", self._namespace(name))
        lines = ["link add br0 type bridge", "link set br0 up"]
        for at, name in enumerate(self._links.names, start=1):
            lines.append(f"link add p{at} type veth peer name eth0 netns {self._namespace(name)}")
            lines.append(f"link set p{at} master br0 up")
        _batch(hub, lines)
        for name, host in self._host.items():
            _batch(
                self._namespace(name),
                ["link set lo up", f"addr add {host}/24 dev eth0", "link set eth0 up"],
            )

    def listener(self, name: str) -> Listener:
        host, port = self._host[name], self._ports[name]
        self._ports[name] += 1
        return Listener(host, port, host, port)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        self._enter(name)
        try:
            yield
        finally:
            self._enter(CLIENT)

    def started(self, name: str, pid: int) -> None:
        """Nothing to do: a process is in the namespace that it was started in."""

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._cut(self._links.between(a, b, one_way=one_way))

    def isolate(self, name: str, *, but: Collection[str] = ()) -> None:
        self._cut(self._links.around(name, but=but))

    def heal(self) -> None:
        self._change(self._links.cut, "neigh del {host} dev eth0")
        self._links.cut = frozenset()

    def close(self) -> None:
        if self._home >= 0:
            set_namespace(self._home)
            os.close(self._home)
            self._home = -1
        for path in _FOLDER.glob(f"{self._stem}-*"):
            _run("ip", "netns", "del", path.name)

    def _cut(self, links: frozenset[Link]) -> None:
        self._change(links, f"neigh replace {{host}} lladdr {_NOBODY} dev eth0 nud permanent")
        self._links.cut |= links

    def _change(self, links: Collection[Link], line: str) -> None:
        for a in {a for a, _ in links}:
            hosts = [self._host[b] for sender, b in links if sender == a]
            _batch(self._namespace(a), [line.format(host=host) for host in hosts])

    def _enter(self, name: str) -> None:
        descriptor = os.open(_FOLDER / self._namespace(name), os.O_RDONLY)
        try:
            set_namespace(descriptor)
        finally:
            os.close(descriptor)


def set_namespace(descriptor: int) -> None:
    """Moves this thread; others stay where they are."""
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_RUN_SECONDS_MAX)


def _batch(namespace: str, lines: Sequence[str]) -> None:
    subprocess.run(
        ["ip", "-n", namespace, "-batch", "-"],
        input="\n".join(lines).encode(),
        check=True,
        capture_output=True,
        timeout=_RUN_SECONDS_MAX,
    )


def _sweep() -> None:
    """Removes what a test run that was killed has left."""
    for path in _FOLDER.glob(f"{_PREFIX}-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _run("ip", "netns", "del", path.name)
