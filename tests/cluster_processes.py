"""A cluster of real processes for tests: etcd, storage nodes and brokers, in a network to be cut.

    with running_cluster(tmp_path, brokers=3, storage=3, etcd_members=1) as cluster:
        cluster.bootstrap                       for Kafka clients
        cluster.kill("broker-1")                also pause, resume, stop, launch, restart
        cluster.network.isolate("storage-2")    also cut and heal; see network_links.py

Processes are named `etcd-1`, `storage-1`, `broker-1` and on; storage nodes have the numbers 1, 2
and on, brokers 101, 102 and on. Settings for all nodes come by keyword, as for `node_factory`.
Everything ends with the block, also after a failure, and a paused or isolated one too.
"""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.conftest import RunningNode
from tests.etcd_server import EtcdMember
from tests.network_links import Listener, Network, open_network

BROKER_NUMBER_BASE = 100

#: Far above what a healthy cluster needs, on a machine that does other work too.
WAIT_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.05

#: Lines of each log that a failed test is shown with.
LAST_LINES = 30

#: Three copies of which two acknowledge; small ledgers, so that tests see rolls.
SETTINGS = {
    "coordination_kind": "etcd",
    "log_ensemble": "3",
    "log_write_quorum": "3",
    "log_ack_quorum": "2",
    "log_ledger_bytes_max": "128KiB",
}


class PlacedMember(EtcdMember):
    """A member of etcd whose process is known to the network."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


class ClusterProcesses:
    """Made by `running_cluster`."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        *,
        brokers: int,
        storage: int,
        etcd_members: int,
        settings: Mapping[str, str],
        racks: Mapping[str, str],
    ) -> None:
        self.network = network
        self.etcd = _etcd(folder / "etcd", network, etcd_members)
        endpoints = ",".join(member.endpoint for member in self.etcd.values())
        self.nodes: dict[str, RunningNode] = {}
        self._listeners: dict[str, tuple[Listener, Listener]] = {}
        for kind, role, count in (("storage", "storage", storage), ("broker", "broker", brokers)):
            for at in range(1, count + 1):
                name = f"{kind}-{at}"
                number = at + (BROKER_NUMBER_BASE if kind == "broker" else 0)
                listener, http_listener = network.listener(name), network.listener(name)
                self._listeners[name] = (listener, http_listener)
                own = {
                    "node_name": name,
                    "node_node_id": str(number),
                    "node_roles": role,
                    "coordination_endpoints": endpoints,
                    "kafka_host": listener.listen_host,
                    "kafka_port": str(listener.listen_port),
                    "kafka_advertised_host": listener.host,
                    "kafka_advertised_port": str(listener.port),
                    "http_port": str(http_listener.listen_port),
                }
                # Older versions, which tests of upgrades start, do not know of racks.
                own |= {"node_rack": racks[name]} if name in racks else {}
                self.nodes[name] = RunningNode(folder / name, {**SETTINGS, **own, **settings})

    @property
    def brokers(self) -> list[str]:
        return [name for name in self.nodes if name.startswith("broker")]

    @property
    def storage(self) -> list[str]:
        return [name for name in self.nodes if name.startswith("storage")]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(self._listeners[name][0].address for name in self.brokers)

    def address(self, name: str) -> tuple[str, int]:
        """Where others reach a node."""
        listener = self._listeners[name][0]
        return listener.host, listener.port

    def number(self, name: str) -> int:
        """A node's number in the Kafka protocol and in ledgers."""
        at = int(name.rpartition("-")[2])
        return at + (BROKER_NUMBER_BASE if name in self.brokers else 0)

    def http_port(self, name: str) -> int:
        """Where a node serves HTTP, inside its own network."""
        return self._listeners[name][1].listen_port

    # Life of all

    def start(self) -> None:
        """Starts everything; returns when all of it is ready."""
        for name in self.etcd:
            self.launch(name)
        for member in self.etcd.values():
            member.wait_ready()
        self.mend()

    def mend(self) -> None:
        """Heals, wakes and starts what a test left cut, paused or dead; returns when all serve."""
        self.network.heal()
        for name in (*self.etcd, *self.nodes):
            process = self._process(name)
            if process.running:
                process.resume()
            else:
                self.launch(name)
        for name in self.nodes:
            self.await_ready(name)

    def end(self) -> None:
        """kill -9 on everything."""
        for process in (*self.nodes.values(), *self.etcd.values()):
            process.kill()

    # Life of one

    def launch(self, name: str) -> None:
        """Starts one, and does not wait."""
        with self.network.inside(name):
            if name in self.etcd:
                self.etcd[name].start()
                pid = self.etcd[name].pid
            else:
                self.nodes[name].launch()
                pid = self.nodes[name].pid
        self.network.started(name, pid)

    def restart(self, name: str) -> None:
        """Starts one that is dead; returns when it is ready, or etcd's member serves."""
        self.launch(name)
        if name in self.etcd:
            self.etcd[name].wait_ready()
        else:
            self.await_ready(name)

    def kill(self, name: str) -> None:
        """kill -9."""
        self._process(name).kill()

    def pause(self, name: str) -> None:
        """SIGSTOP; returns when all of its threads stand."""
        self._process(name).pause()

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._process(name).resume()

    def stop(self, name: str) -> int:
        """A clean stop of a node; returns its exit code."""
        return self.nodes[name].stop()

    def wait_end(self, name: str) -> int:
        """Waits until a node ends by itself; returns its exit code."""
        return self.nodes[name].wait()

    # What they say

    def ready(self, name: str) -> tuple[bool, list[str]]:
        """What `/readyz` of a node says; not ready if it does not answer."""
        with self.network.inside(name):
            connection = http.client.HTTPConnection(
                "127.0.0.1", self._listeners[name][1].listen_port, timeout=2
            )
            try:
                connection.request("GET", "/readyz")
                answer = json.loads(connection.getresponse().read())
            except (OSError, http.client.HTTPException) as error:
                return False, [f"no answer: {error!r}"]
            finally:
                connection.close()
        return bool(answer["ready"]), list(answer["reasons"])

    def await_ready(self, name: str) -> None:
        """Waits until a node says that it serves."""

        def look() -> bool:
            self._fail_if_dead(name)
            return self.ready(name)[0]

        wait_until(f"{name} is ready", look, told=lambda: self._tell(name))

    def leader(self, topic: str, partition: int, *, asked: str = "") -> str:
        """The broker that leads a partition, or "", as all brokers say or the one that is asked."""
        bootstrap = self._listeners[asked][0].address if asked else self.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        try:
            known = admin.list_topics(topic, timeout=10).topics[topic].partitions
        except KafkaException:
            return ""
        numbers = {self.number(name): name for name in self.brokers}
        return numbers.get(known[partition].leader, "") if partition in known else ""

    def etcd_leader(self) -> str:
        """The member of etcd that leads; waits until there is one among those that answer."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [name for name in self.etcd if self._leads(name)]
            return bool(found)

        wait_until("etcd has a leader", look)
        return found[0]

    def log(self, *names: str) -> str:
        """What these nodes, or all, have written about themselves."""
        return "".join(self._log_of(name) for name in names or self.nodes)

    def _log_of(self, name: str) -> str:
        try:
            return self.nodes[name].log()
        except FileNotFoundError:  # It was never started.
            return ""

    def last_words(self) -> str:
        """The end of every node's log."""
        return "\n".join(
            "\n".join([f"--- {name}", *self._log_of(name).splitlines()[-LAST_LINES:]])
            for name in self.nodes
        )

    def _process(self, name: str) -> RunningNode | PlacedMember:
        return self.etcd[name] if name in self.etcd else self.nodes[name]

    def _fail_if_dead(self, name: str) -> None:
        stat = Path(f"/proc/{self.nodes[name].pid}/stat")
        state = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "X"
        assert state not in "ZX", f"{name} has ended:\n{self.nodes[name].log()[-2000:]}"

    def _tell(self, name: str) -> str:
        return f"{self.ready(name)[1]}\n{self.nodes[name].log()[-2000:]}"

    def _leads(self, name: str) -> bool:
        host, _, port = self.etcd[name].endpoint.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=2)
        try:
            connection.request("POST", "/v3/maintenance/status", body="{}")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return bool(answer.get("leader")) and answer["leader"] == answer["header"]["member_id"]


def wait_until(
    what: str,
    holds: Callable[[], bool],
    *,
    seconds_max: float = WAIT_SECONDS_MAX,
    told: Callable[[], str] = lambda: "",
) -> None:
    """Waits for something that can only be looked at; fails with its name after the time."""
    deadline = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds_max:.0f} s: {what}. {told()}"
        time.sleep(LOOK_SECONDS)


def _etcd(folder: Path, network: Network, count: int) -> dict[str, PlacedMember]:
    folder.mkdir(parents=True)
    members: dict[str, PlacedMember] = {}
    flags: dict[str, tuple[str, ...]] = {}
    for at in range(1, count + 1):
        name = f"etcd-{at}"
        listener, peer_listener = network.listener(name), network.listener(name)
        member = PlacedMember(
            name, folder, client_port=listener.listen_port, peer_port=peer_listener.listen_port
        )
        member.endpoint, member.peer_url = listener.address, f"http://{peer_listener.address}"
        members[name] = member
        # Later flags win: where it listens is not where it is reached.
        flags[name] = (
            f"--listen-client-urls=http://{listener.listen_host}:{listener.listen_port}",
            f"--listen-peer-urls=http://{peer_listener.listen_host}:{peer_listener.listen_port}",
        )
    initial = ",".join(f"{member.name}={member.peer_url}" for member in members.values())
    for name, member in members.items():
        member.configure(initial, flags[name])
    return members


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    *,
    brokers: int = 3,
    storage: int = 3,
    etcd_members: int = 1,
    network: str = "",
    racks: Mapping[str, str] = MappingProxyType({}),
    **settings: str,
) -> Iterator[ClusterProcesses]:
    """A cluster that serves. `network` is its kind, the best that works here if not given;
    `racks` names the rack of each node that has one."""
    sizes = {"etcd": etcd_members, "storage": storage, "broker": brokers}
    names = [f"{kind}-{at}" for kind, count in sizes.items() for at in range(1, count + 1)]
    with open_network(names, kind=network) as made:
        cluster = ClusterProcesses(
            folder,
            made,
            brokers=brokers,
            storage=storage,
            etcd_members=etcd_members,
            settings=settings,
            racks=racks,
        )
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()
            # Shown beside a test that failed; the folders of tests do not stay for long.
            print(cluster.last_words())


def running_timelines(
    folder: Path, dsn: str
) -> contextlib.AbstractContextManager[ClusterProcesses]:
    """Three brokers that serve timelines from PostgreSQL; the log is there, with one copy."""
    return running_cluster(
        folder,
        brokers=3,
        storage=1,
        network="proxies",
        log_ensemble="1",
        log_write_quorum="1",
        log_ack_quorum="1",
        timeline_store="postgres",
        timeline_dsn=dsn,
    )
