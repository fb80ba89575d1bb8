"""A real Apache Kafka: one KRaft node or several, from the jars of Maven Central, which are kept.

It can be killed (SIGKILL) and started again on the same ports and folder. For figures at equal
durability it syncs every append before it acknowledges (`SYNCED`); by itself Kafka never does.
"""

import os
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.peers import maven
from bench.peers.server import PeerMissing, free_port, wait_for_port
from dovetail.spark.runtime import JavaMissing, find_java

VERSION = "4.3.0"
#: Kafka's name for "on disk before it is acknowledged".
SYNCED: Mapping[str, str] = {"log.flush.interval.messages": "1"}
START_S_MAX = 120.0

_POM = Path(__file__).with_name("kafka.pom.xml")
_HOST = "127.0.0.1"
_FORMAT_S_MAX = 60


def jars() -> Path:
    """A folder with Kafka's jars and those of its tools. Raises `PeerMissing`."""
    return maven.jars(_POM, f"kafka-{VERSION}", "Apache Kafka")


def java() -> str:
    """The program. Raises `PeerMissing`."""
    try:
        return str(find_java(os.environ).home / "bin" / "java")
    except JavaMissing as error:
        raise PeerMissing(str(error)) from error


@dataclass(frozen=True, slots=True)
class Seat:
    """A broker's number and ports, and the controllers of its cluster."""

    node_id: int
    port: int
    controller_port: int
    voters: str
    cluster_id: str


def seats(count: int) -> list[Seat]:
    """The brokers of one cluster, each of which is a controller too."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    voters = ",".join(f"{at}@{_HOST}:{controller}" for at, (_, controller) in enumerate(ports, 1))
    name = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return [Seat(at, *both, voters, name) for at, both in enumerate(ports, 1)]


class KafkaServer:
    """One broker, which is its own controller, or one of several."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        seat: Seat | None = None,
        heap_mb: int = 512,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._java = [java(), f"-Xmx{heap_mb}m", "-cp", f"{jars()}/*"]
        self._seat = seat = seat or seats(1)[0]
        self.node_id = seat.node_id
        self.bootstrap = f"{_HOST}:{seat.port}"
        self._config = folder / "server.properties"
        given = {
            "process.roles": "broker,controller",
            "node.id": str(seat.node_id),
            "controller.quorum.voters": seat.voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},"
            f"CONTROLLER://{_HOST}:{seat.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.num.partitions": "4",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        } | dict(settings)
        self._config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        self._process: subprocess.Popen[bytes] | None = None
        self._format()

    def _format(self) -> None:
        # Glued to its option: an id in 64 begins with "-", which the tool takes for another option.
        given = ["format", f"--cluster-id={self._seat.cluster_id}", "--config", str(self._config)]
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", *given],
            capture_output=True,
            text=True,
            check=False,
            timeout=_FORMAT_S_MAX,
        )
        if done.returncode != 0:
            raise PeerMissing(f"Kafka's folder cannot be made: {done.stderr[-500:]}")

    def start(self) -> None:
        """Starts, and returns when its port answers."""
        self.launch()
        self.await_port()

    def launch(self) -> None:
        """Starts; a node of several answers only when most of them run."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._config)],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_port(self) -> None:
        """Returns when its port answers. Raises `PeerMissing`."""
        assert self._process is not None
        log_path = self._folder / "server.log"
        wait_for_port(self._process, self._seat.port, log_path, seconds_max=START_S_MAX)

    def cpu_s(self) -> float:
        """Processor seconds that it has used, user and system."""
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        """Resident memory in megabytes of 10^6 bytes."""
        assert self._process is not None
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    def said(self) -> str:
        """The end of what it wrote about itself."""
        return (self._folder / "server.log").read_text()[-3000:]

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def running(folder: Path, settings: Mapping[str, str] = SYNCED) -> Iterator[KafkaServer]:
    """A broker for the time of the block. Raises `PeerMissing`."""
    server = KafkaServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
