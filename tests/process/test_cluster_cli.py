"""`dovetail cluster` as a person uses it: real processes, real kills."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import warm_python
from tests.etcd_server import binary

from dovetail.cli.local_cluster import processes as cluster_processes
from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.postgres import find_programs
from dovetail.cli.outcome import ExitCode

COMMAND_S_MAX = 100.0
SIZES = ("--brokers", "2", "--storage", "3", "--etcd-members", "1", "--port", "0")
SMALLEST = ("--brokers", "1", "--storage", "1", "--etcd-members", "1", "--port", "0")


class Shell:
    """Runs `dovetail` in a folder of its own, as in a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = ClusterFolder(folder / "dovetail-cluster")
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}

    def run(
        self, *arguments: str, given: str = "", code: int = ExitCode.OK
    ) -> subprocess.CompletedProcess[str]:
        done = warm_python.run(
            [sys.executable, "-m", "dovetail", *arguments],
            env=self._environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stderr
        return done

    def use(self, bootstrap: str) -> None:
        """What the panel of `cluster start` tells a person to export."""
        self._environment["DOVETAIL_CLIENT_BOOTSTRAP"] = bootstrap

    def trust(self, authority: str) -> None:
        """The same, of a cluster that encrypts."""
        self._environment |= {
            "DOVETAIL_CLIENT_TLS": "true",
            "DOVETAIL_CLIENT_TLS_CA": authority,
        }

    def log_in(self, user: str, password: str) -> None:
        """The same, where clients have to log in."""
        self._environment |= {"DOVETAIL_CLIENT_USER": user, "DOVETAIL_CLIENT_PASSWORD": password}

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run("cluster", "status", "--json").stdout)
        return answer

    def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.status()["processes"]}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    binary()
    made = Shell(tmp_path)
    try:
        yield made
    finally:
        for name, process in cluster_processes.find(made.cluster).items():
            cluster_processes.kill(name, process)


def test_a_cluster_is_started_hurt_healed_and_stopped(shell: Shell) -> None:
    """U2, B1, B2: start, kill, pause, resume, start again, stop; what was produced stays."""
    started = json.loads(shell.run("cluster", "start", "--json", *SIZES).stdout)
    shell.use(started["bootstrap"])
    shell.run("topic", "create", "t", "--partitions", "3")
    shell.run("produce", "t", given="".join(f"{n}\n" for n in range(100)))

    shell.run("cluster", "kill", "storage-2")
    shell.run("cluster", "pause", "storage-3")
    states = shell.states()
    assert states["storage-2"] == "dead"
    assert states["storage-3"] == "paused"
    assert {states[name] for name in states if name not in ("storage-2", "storage-3")} == {
        "running"
    }
    shell.run("cluster", "kill", "storage-2", code=ExitCode.NOT_FOUND)
    shell.run("cluster", "resume", "storage-2", code=ExitCode.NOT_FOUND)
    shell.run("cluster", "pause", "storage-3", code=ExitCode.FAILED)
    shell.run("cluster", "resume", "storage-3")
    again = shell.run("cluster", "start")
    assert "storage-2    ready on" in again.stderr
    assert "broker-1     is running already" in again.stderr
    assert "runs already" in shell.run("cluster", "start").stderr

    seen = shell.status()
    assert {one["state"] for one in seen["processes"]} == {"running"}
    storage = [member for member in seen["members"] if "storage" in member["roles"]]
    assert {member["node_id"] for member in storage} == {1, 2, 3}
    assert seen["without_leader"] == []
    assert {node["node_id"] for node in seen["overseer"]["nodes"]} == {1, 2, 3, 101, 102}
    assert seen["errors"] == {}
    assert sum(broker["leads"] for broker in seen["brokers"]) == seen["partitions"] >= 3
    assert all(one["memory_bytes"] > 1_000_000 for one in seen["processes"])
    assert "storage ready" in shell.run("cluster", "logs", "storage-2").stdout

    shell.run("cluster", "pause", "storage-1")
    assert "storage-1    stopped" in shell.run("cluster", "stop").stderr
    assert set(shell.states().values()) == {"dead"}
    assert cluster_processes.find(shell.cluster) == {}
    assert "nothing runs" in shell.run("cluster", "stop").stderr


def test_a_cluster_encrypts(shell: Shell) -> None:
    """U2, R4: `--tls` makes the certificates; nodes, `status` and clients speak TLS with them.
    Where clients have to log in, nodes are let in by theirs; without TLS that is refused."""
    (shell.folder / "password").write_text("let-me-in\n")
    login = {
        "security.login": "scram-sha-512",
        "security.authorize": "true",
        "security.admin_password_file": str(shell.folder / "password"),
    }
    guards = [f"--set={name}={value}" for name, value in login.items()]
    refused = shell.run("cluster", "start", *SMALLEST, *guards, code=ExitCode.USAGE)
    assert "add --tls" in refused.stderr
    started = shell.run("cluster", "start", "--tls", *SMALLEST, *guards, "--json")
    document = json.loads(started.stdout)
    shell.use(document["bootstrap"])
    shell.run("topic", "create", "orders", code=ExitCode.UNREACHABLE)
    shell.trust(document["tls_ca"])
    shell.run("topic", "create", "orders", code=ExitCode.UNREACHABLE)
    shell.log_in("admin", "let-me-in")
    shell.run("topic", "create", "orders")
    shell.run("produce", "orders", given="one\n")
    assert shell.run("consume", "orders").stdout == "one\n"
    assert shell.status()["errors"] == {}
    # The next start finds the same certificates.
    shell.run("cluster", "kill", "broker-1")
    shell.run("cluster", "start")
    assert shell.run("consume", "orders").stdout == "one\n"


def test_everything_is_killed_and_comes_back(shell: Shell) -> None:
    """U2, L6: kill -9 on every process at once; the next start has the data, on the same ports."""
    started = json.loads(shell.run("cluster", "start", "--json", *SMALLEST).stdout)
    shell.use(started["bootstrap"])
    shell.run("topic", "create", "t")
    shell.run("produce", "t", given="".join(f"{n}\n" for n in range(100)))
    for name, process in cluster_processes.find(shell.cluster).items():
        cluster_processes.kill(name, process)
    again = json.loads(shell.run("cluster", "start", "--json").stdout)
    assert again == started
    read = shell.run("consume", "t").stdout.split()
    assert read == [str(n) for n in range(100)]
    # A plan that is lost, with its whole folder even, leaves nothing that could not be ended.
    (shell.cluster.path / "cluster.json").unlink()
    done = shell.run("cluster", "start", code=ExitCode.FAILED)
    assert "its cluster.json is lost; stop them with" in done.stderr
    shell.cluster.path.rename(shell.folder / "elsewhere")
    shell.run("cluster", "stop")
    assert cluster_processes.find(shell.cluster) == {}


def test_a_node_that_does_not_come_up_is_told_with_its_last_words(shell: Shell) -> None:
    """U7: a storage node whose disk was exchanged is refused, and the person sees why at once."""
    shell.run("cluster", "start", *SMALLEST)
    shell.run("cluster", "kill", "storage-1")
    (shell.cluster.path / "storage-1").rename(shell.cluster.path / "lost")
    done = shell.run("cluster", "start", code=ExitCode.FAILED)
    assert "storage-1 ended with code 2" in done.stderr
    assert "is bound to another disk" in done.stderr
    shell.run("cluster", "stop")


@pytest.fixture
def open_shell() -> Iterator[Shell]:
    """In a folder that another user can enter: PostgreSQL does not run as root."""
    binary()
    folder = Path(tempfile.mkdtemp(prefix="dovetail-open-"))
    folder.chmod(0o711)
    made = Shell(folder)
    try:
        yield made
    finally:
        for name, process in cluster_processes.find(made.cluster).items():
            cluster_processes.kill(name, process)
        shutil.rmtree(folder)


def test_a_cluster_serves_timelines(open_shell: Shell) -> None:
    """F73: in a PostgreSQL of its own, which dies with the others and comes back with its data."""
    shell = open_shell
    find_programs(shell.cluster)
    started = json.loads(shell.run("cluster", "start", "--json", *SMALLEST).stdout)
    shell.use(started["bootstrap"])
    assert "postgres-1" in started["processes"]
    shell.run("timeline", "create", "reminders")
    shell.run("timeline", "schedule", "reminders", "call Ada")
    assert shell.run("timeline", "consume", "reminders", "--count", "1").stdout == "call Ada\n"

    shell.run("timeline", "schedule", "reminders", "call Bob")
    for name, process in cluster_processes.find(shell.cluster).items():
        cluster_processes.kill(name, process)
    shell.run("cluster", "start")
    assert set(shell.states().values()) == {"running"}
    assert shell.run("timeline", "consume", "reminders", "--count", "1").stdout == "call Bob\n"

    closed = [shell.cluster.path / name for name in ("postgres-1.password", "cluster.json")]
    assert {path.stat().st_mode & 0o077 for path in closed} == {0}
    assert "postgres-1   stopped" in shell.run("cluster", "stop").stderr


def test_a_cluster_without_postgresql_says_so(open_shell: Shell) -> None:
    """F73: its start says why and what to do; the commands that want timelines say so too."""
    shell = open_shell
    shell.cluster.path.parent.chmod(0o700)
    done = shell.run("cluster", "start", "--json", *SMALLEST)
    if os.geteuid() == 0:
        assert "timelines are not served: PostgreSQL does not run as root" in done.stderr
        assert "--timelines-store postgresql://" in done.stderr
        shell.use(json.loads(done.stdout)["bootstrap"])
        refused = shell.run("timeline", "create", "reminders", code=ExitCode.FAILED)
        assert "serves no timelines" in refused.stderr
