"""`dovetail doctor` on the real thing: a set-up that is well, and set-ups that are not."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.etcd_server import running_cluster
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.outcome import ExitCode


class Node(Protocol):
    """What the `node` fixture gives."""

    bootstrap: str
    http_url: str
    data_dir: Path


def settings_of(node: Node) -> dict[str, str]:
    return {
        "DOVETAIL_NODE_DATA_DIR": str(node.data_dir),
        "DOVETAIL_KAFKA_PORT": node.bootstrap.rpartition(":")[2],
        "DOVETAIL_HTTP_PORT": node.http_url.rpartition(":")[2],
    }


def doctor(
    folder: Path, *arguments: str, **environment: str
) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the findings by check."""
    done = run(folder, "--json", "--sample", "100ms", *arguments, **environment)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.exit_code, {row["check"]: row for row in found["checks"]}


def run(folder: Path, *arguments: str, **environment: str) -> Result:
    """In this process: what is looked at is real, and a start of Python costs a second each."""
    unset = {name: None for name in os.environ if name.startswith("DOVETAIL_")}
    with contextlib.chdir(folder):
        return CliRunner().invoke(
            app, ["doctor", *arguments], env={**unset, **environment}, catch_exceptions=False
        )


@pytest.fixture
def squatter() -> Iterator[int]:
    """A port at which something listens that is no node, and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_node_that_is_well(node: Node, tmp_path: Path) -> None:
    """U4: everything about a running node is looked at, and found well; exit code 0."""
    code, found = doctor(tmp_path, **settings_of(node))
    assert code == ExitCode.OK
    well = {"settings", "python", "packages", "data folder", "node", "advertised address"}
    well |= {"clock", "health", "partitions", "groups", "port for Kafka clients", "port for HTTP"}
    assert {check: found[check]["state"] for check in well} == dict.fromkeys(well, "ok")
    assert "by the node that answers" in found["port for HTTP"]["text"]
    assert node.bootstrap in found["advertised address"]["text"]
    table = run(tmp_path, "--sample", "100ms", **settings_of(node))
    assert table.exit_code == ExitCode.OK
    assert "advertised address" in table.stdout
    assert "0 failed" in table.stderr


def test_a_machine_on_which_nothing_runs_yet(tmp_path: Path) -> None:
    """U4, U7: a newcomer is told to start a node, and has not failed."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    code, found = doctor(tmp_path, DOVETAIL_KAFKA_PORT=str(port), DOVETAIL_HTTP_PORT="0")
    assert code == ExitCode.OK
    assert found["node"]["state"] == "warning"
    assert "dovetail up" in found["node"]["fix"]
    assert found["port for Kafka clients"]["text"].endswith("can be taken")
    code, found = doctor(tmp_path, "--bootstrap", f"127.0.0.1:{port}", "--set", "http.port=0")
    assert code == ExitCode.FAILED, "an address that was named on purpose must answer"
    assert found["node"]["state"] == "failed"


def test_a_set_up_that_ails_in_many_places(squatter: int, tmp_path: Path) -> None:
    """U4, U7: each fault is found by itself, with its fix, and the exit code says so."""
    (tmp_path / "data").write_text("")
    code, found = doctor(
        tmp_path,
        "--timeout",
        "300ms",
        DOVETAIL_NODE_DATA_DIR="data",
        DOVETAIL_KAFKA_PORT=str(squatter),
        DOVETAIL_HTTP_PORT=str(squatter),
        DOVETAIL_OUTBOX_DATABASE=f"sqlite:///{tmp_path}/shop.db",
        DOVETAIL_COORDINATION_KIND="etcd",
        DOVETAIL_COORDINATION_ENDPOINTS=f"127.0.0.1:{squatter}",
        DOVETAIL_TIMELINE_STORE="postgres",
        DOVETAIL_TIMELINE_DSN=f"postgresql://nobody@127.0.0.1:{squatter}/x",
    )
    assert code == ExitCode.FAILED
    ails = {"data folder", "port for Kafka clients", "port for HTTP", "node", "outbox", "etcd"}
    ails |= {"postgres"}
    assert {check: found[check]["state"] for check in ails} == dict.fromkeys(ails, "failed")
    assert "is a file" in found["data folder"]["text"]
    assert "outbox migrate" in found["outbox"]["fix"]
    assert all(found[check]["fix"] for check in ails)


def test_settings_that_cannot_be_read(tmp_path: Path) -> None:
    """U3, U7: a bad file is a finding; what does not depend on it is looked at nevertheless."""
    (tmp_path / "dovetail.toml").write_text("[kafka]\nprot = 1\n")
    code, found = doctor(tmp_path)
    assert code == ExitCode.FAILED
    assert found["settings"]["state"] == "failed"
    assert "port" in found["settings"]["text"]
    assert found["python"]["state"] == "ok"
    assert found["node"]["state"] == "skipped"


def test_etcd_and_the_outbox_are_asked_for_their_versions(node: Node, tmp_path: Path) -> None:
    """U4: what answers is judged by what it says."""
    database = f"sqlite:///{tmp_path}/shop.db"
    made = CliRunner().invoke(app, ["outbox", "init", "--database", database])
    assert made.exit_code == ExitCode.OK
    with running_cluster(tmp_path / "etcd", size=1) as etcd:
        _, found = doctor(
            tmp_path,
            **settings_of(node),
            DOVETAIL_OUTBOX_DATABASE=database,
            DOVETAIL_COORDINATION_KIND="etcd",
            DOVETAIL_COORDINATION_ENDPOINTS=",".join(etcd.endpoints),
        )
    assert found["outbox"]["state"] == "ok"
    # The etcd that tests can install is one of the versions to warn about.
    assert found["etcd"]["state"] == "warning"
    assert "3.5.1" in found["etcd"]["text"]
    assert found["copies"]["state"] == "ok"


@pytest.mark.parametrize("who", ["http", "kafka"])
def test_an_endpoint_that_is_not_etcd_is_told(node: Node, tmp_path: Path, who: str) -> None:
    """U4: an address of something else is an answer too, and no traceback."""
    endpoint = node.http_url.removeprefix("http://") if who == "http" else node.bootstrap
    _, found = doctor(
        tmp_path,
        **settings_of(node),
        DOVETAIL_COORDINATION_KIND="etcd",
        DOVETAIL_COORDINATION_ENDPOINTS=endpoint,
    )
    assert found["etcd"]["state"] == "failed"
    assert endpoint in found["etcd"]["text"]


def test_a_dead_broker_of_the_list_is_not_well(node: Node, tmp_path: Path) -> None:
    """F86: a bootstrap list that begins with a dead broker works, and the doctor names it."""
    code, found = doctor(tmp_path, "--bootstrap", f"127.0.0.1:1,{node.bootstrap}")
    assert code == ExitCode.FAILED
    assert found["node"]["state"] == "failed"
    assert "127.0.0.1:1 (connection refused)" in found["node"]["text"]
    assert found["advertised address"]["state"] == "ok"


def test_a_cluster_elsewhere_is_not_judged_by_who_listens_here(node: Node, tmp_path: Path) -> None:
    """F86: with another cluster named, whatever serves HTTP at the default address is not asked."""
    _, found = doctor(tmp_path, "--bootstrap", node.bootstrap)
    assert found["health"]["state"] == "skipped"
    assert "http.port" in found["health"]["text"]
    assert "port for HTTP" not in found
