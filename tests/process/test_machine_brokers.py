"""Several broker processes over one disk on one machine: `dovetail up --brokers`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests import warm_python
from tests.process.access.certificates import Authority

WAIT_SECONDS_MAX = 60.0
#: More than a new broker is behind the other by, so that both get some.
PARTITIONS = 24

#: How a client shows who it is.
Login = Mapping[str, str]
_NO_LOGIN: Login = {}


class Machine:
    """`dovetail up --brokers 2` in processes of its own, on any free ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Set for all processes, as NAME=VALUE.
        self.settings: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def launch(self, *, port: int = 0, brokers: int | None = 2) -> "subprocess.Popen[str]":
        """Starts it, and does not wait."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        command = [sys.executable, "-m", "dovetail", "up", "--json"]
        command += [] if brokers is None else [f"--brokers={brokers}"]
        command += [
            "--data-dir",
            str(self._folder / "data"),
            "--port",
            str(port),
            "--http-port",
            "0",
            *(f"--set={text}" for text in self.settings),
        ]
        with (self._folder / "log").open("a") as log:
            self._process = warm_python.Popen(
                command,
                env=environment,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self._process

    def start(self, *, brokers: int | None = 2) -> None:
        """Returns when all brokers serve; None is a node without any beside it."""
        process = self.launch(brokers=brokers)
        assert process.stdout is not None
        timer = threading.Timer(WAIT_SECONDS_MAX, process.kill)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        assert line, (self._folder / "log").read_text()
        self.ready = json.loads(line)

    def end(self, number: int = signal.SIGKILL) -> int:
        """Sends a signal to the process with the disk, and waits for its end alone."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        code = process.wait(timeout=WAIT_SECONDS_MAX)
        if process.stdout is not None:
            process.stdout.close()
        return code

    @property
    def bootstrap(self) -> list[str]:
        return [broker["kafka"] for broker in self.ready["brokers"]]

    def brokers(self) -> dict[int, psutil.Process]:
        """The processes of the brokers by their numbers."""
        found = {}
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if any(word.startswith(f"--data-dir={self._folder}") for word in command):
                numbers = [word for word in command if word.startswith("--node-id=")]
                found[int(numbers[0].partition("=")[2])] = process
        return found

    def troubles(self) -> list[str]:
        """What `/readyz` of the process with the disk says."""
        try:
            with urllib.request.urlopen(f"{self.ready['http']}/readyz", timeout=10) as answer:
                return list(json.load(answer)["reasons"])
        except urllib.error.HTTPError as error:
            return list(json.load(error)["reasons"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()
    wait_until(lambda: not made.brokers(), "no broker outlives the test")


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def leaders(admin: AdminClient) -> set[int]:
    """The brokers that lead partitions of the topic."""
    known = admin.list_topics("t", timeout=WAIT_SECONDS_MAX).topics["t"].partitions
    return {partition.leader for partition in known.values()}


def produce(bootstrap: str, first: int, count: int, login: Login = _NO_LOGIN) -> None:
    """Writes numbers to all partitions; returns when all are acknowledged."""
    failed: list[object] = []

    def answered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    sender = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, **login}
    )
    for number in range(first, first + count):
        sender.produce(
            "t", str(number).encode(), partition=number % PARTITIONS, on_delivery=answered
        )
    assert sender.flush(WAIT_SECONDS_MAX) == 0
    assert failed == []


def read_all(bootstrap: str, count: int, login: Login = _NO_LOGIN) -> list[list[int]]:
    """The numbers of each partition in order, once there are so many."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **login})
    consumer.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while sum(map(len, found)) < count:
            assert time.monotonic() < deadline, found
            for message in consumer.consume(count, timeout=0.2):
                if message.error() is None:
                    found[message.partition()].append(int(message.value()))
    finally:
        consumer.close()
    return found


def expected(count: int) -> list[list[int]]:
    return [list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]


def test_brokers_on_one_machine_are_one_cluster_and_lose_nothing(machine: Machine) -> None:
    """U2, L9: clients see one cluster; neither a broker's kill -9 nor that of all loses a record.

    They serve what a single node has stored in the folder. The broker comes back where its clients
    know it; without the process that has the disk none lives on; a stop leaves nothing running.
    """
    machine.start(brokers=None)
    admin = AdminClient({"bootstrap.servers": machine.ready["kafka"]})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(WAIT_SECONDS_MAX)
    produce(machine.ready["kafka"], 0, 50)
    assert machine.end(signal.SIGTERM) == 0

    machine.start()
    first, second = machine.bootstrap
    admin = AdminClient({"bootstrap.servers": first})
    wait_until(lambda: leaders(admin) == {101, 102}, "both brokers lead")
    produce(first, 50, 50)
    assert read_all(second, 100) == expected(100)

    machine.brokers()[102].kill()
    wait_until(lambda: "broker 102: ended with code -9" in str(machine.troubles()), "it is told")
    produce(first, 100, 100)
    wait_until(lambda: machine.troubles() == [], "it is started again")
    assert read_all(second, 200) == expected(200)

    machine.end(signal.SIGKILL)
    wait_until(lambda: not machine.brokers(), "brokers end with the process that has the disk")
    machine.start()
    assert read_all(machine.bootstrap[0], 200) == expected(200)

    assert machine.end(signal.SIGTERM) == 0
    assert machine.brokers() == {}


def test_a_broker_that_cannot_start_ends_all_with_the_reason(
    machine: Machine, tmp_path: Path
) -> None:
    """U2, U7: a port in use is named, and nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = machine.launch(port=port)
        assert process.wait(timeout=WAIT_SECONDS_MAX) != 0
    log = (tmp_path / "log").read_text()
    assert f"127.0.0.1:{port} is in use" in log
    assert "broker 101 ended with code" in log
    wait_until(lambda: not machine.brokers(), "nothing is left running")


def test_brokers_on_one_machine_know_each_other_where_clients_log_in(
    machine: Machine, tmp_path: Path
) -> None:
    """U2, R4: they show certificates to the process with the disk; others are not let in."""
    authority = Authority(tmp_path)
    node = authority.issue("node")
    (tmp_path / "password").write_text("for the machine")
    machine.settings = [
        f"security.tls_certificate={node.certificate}",
        f"security.tls_key={node.key}",
        f"security.tls_ca={authority.file}",
        "security.nodes=node",
        "security.login=scram-sha-512",
        "security.authorize=true",
        f"security.admin_password_file={tmp_path / 'password'}",
    ]
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority.file,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": "for the machine",
    }
    machine.start()
    first, second = machine.bootstrap
    admin = AdminClient({"bootstrap.servers": first, **login})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(WAIT_SECONDS_MAX)
    wait_until(lambda: leaders(admin) == {101, 102}, "both brokers lead")
    produce(first, 0, 50, login)
    assert read_all(second, 50, login) == expected(50)

    machine.brokers()[102].kill()
    produce(first, 50, 50, login)
    assert read_all(first, 100, login) == expected(100)
    wait_until(lambda: leaders(admin) == {101, 102}, "it is let in again")

    wrong = AdminClient(
        {"bootstrap.servers": second, "log_level": 0, **login, "sasl.password": "x"}
    )
    for stranger in (wrong, AdminClient({"bootstrap.servers": second, "log_level": 0})):
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=3)
    assert machine.end(signal.SIGTERM) == 0
    assert machine.brokers() == {}
