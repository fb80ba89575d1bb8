"""The command line on a node that wants TLS and a login: every door that it knocks at."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import RunningNode
from tests.process.access.certificates import Authority
from tests.process.access.guarded import PASSWORD, guarded_node
from typer.testing import CliRunner, Result

from dovetail import connect
from dovetail.cli.app import app
from dovetail.cli.outcome import ExitCode
from dovetail.errors import Unavailable


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of a client that may do everything, and a node that asks for them."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    node = guarded_node(folder, authority)
    node.start()
    try:
        yield {
            "DOVETAIL_CLIENT_BOOTSTRAP": node.bootstrap,
            "DOVETAIL_HTTP_PORT": node.http_url.rpartition(":")[2],
            "DOVETAIL_HTTP_TLS_CERTIFICATE": "of the node",
            "DOVETAIL_HTTP_TLS_KEY": "of the node",
            "DOVETAIL_CLIENT_TLS": "true",
            "DOVETAIL_CLIENT_TLS_CA": authority.file,
            "DOVETAIL_CLIENT_USER": "admin",
            "DOVETAIL_CLIENT_PASSWORD": PASSWORD,
        }
    finally:
        node.kill()


def dovetail(environment: dict[str, str], *arguments: str, folder: Path) -> Result:
    with contextlib.chdir(folder):
        return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)


def test_all_doors_open_for_who_has_the_keys(environment: dict[str, str], tmp_path: Path) -> None:
    """U4, R4: topics, timelines, the overview and the doctor work with TLS and a login."""
    made = dovetail(environment, "timeline", "create", "guarded", folder=tmp_path)
    assert made.exit_code == ExitCode.OK, made.stderr
    top = dovetail(environment, "top", "--once", "--json", "--interval", "100ms", folder=tmp_path)
    assert top.exit_code == ExitCode.OK, top.stderr
    found = json.loads(top.stdout)
    assert [row["timeline"] for row in found["timelines"]] == ["guarded"]
    assert found["troubles"] == {}
    looked = dovetail(environment, "doctor", "--json", "--sample", "100ms", folder=tmp_path)
    checks = {row["check"]: row["state"] for row in json.loads(looked.stdout)["checks"]}
    assert {
        checks[name] for name in ("node", "advertised address", "clock", "groups", "health")
    } == {"ok"}


def test_who_has_the_wrong_keys_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    """U7, R4: a file that is not there, and a password that is wrong, are named."""
    lost = environment | {"DOVETAIL_CLIENT_TLS_CA": "/no/such/ca.pem"}
    done = dovetail(lost, "timeline", "list", folder=tmp_path)
    assert done.exit_code == ExitCode.USAGE
    assert "client.tls_ca" in done.stderr
    wrong = environment | {"DOVETAIL_CLIENT_PASSWORD": "wrong"}
    done = dovetail(wrong, "timeline", "list", "--timeout", "3s", folder=tmp_path)
    assert done.exit_code != ExitCode.OK
    assert "log" in done.stderr or "password" in done.stderr


@pytest.mark.parametrize("command", [["topic", "list"], ["timeline", "list"]], ids=" ".join)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"DOVETAIL_CLIENT_PASSWORD": "wrong"}, "login failed: the name or the password is wrong"),
        ({"DOVETAIL_CLIENT_USER": ""}, "Does it want a login"),
        ({"DOVETAIL_CLIENT_TLS": "false"}, "Does the node want TLS (client.tls)?"),
        ({"DOVETAIL_CLIENT_TLS_CA": ""}, "CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["password", "no login", "no tls", "no authority"],
)
def test_a_wrong_key_does_not_look_like_a_busy_node(
    environment: dict[str, str],
    tmp_path: Path,
    command: list[str],
    given: dict[str, str],
    expected: str,
) -> None:
    """F53: a wrong login and a missing TLS are named at once, and nobody is told to wait longer."""
    done = dovetail(environment | given, *command, folder=tmp_path)
    assert done.exit_code != ExitCode.OK
    assert expected in done.stderr, done.stderr
    assert "--timeout" not in done.stderr
    assert "no answer" not in done.stderr


def test_an_http_port_is_not_a_busy_node(environment: dict[str, str], tmp_path: Path) -> None:
    """F53: the port for HTTP, given as bootstrap address."""
    port = environment["DOVETAIL_HTTP_PORT"]
    done = dovetail({}, "topic", "list", "-b", f"127.0.0.1:{port}", folder=tmp_path)
    assert done.exit_code == ExitCode.UNREACHABLE
    assert "closed the connection" in done.stderr or "it speaks HTTP" in done.stderr, done.stderr
    assert "not the one for HTTP" in done.stderr or "give the port for Kafka" in done.stderr
    assert "Is a node running" not in done.stderr


def test_tls_at_a_node_without_is_named(node: RunningNode, tmp_path: Path) -> None:
    """F53: and so is its port for HTTP; a node is running, and nobody is told to start one."""
    for command in ("topic", "timeline"):
        secure = {"DOVETAIL_CLIENT_TLS": "true"}
        done = dovetail(secure, command, "list", "-b", node.bootstrap, folder=tmp_path)
        assert done.exit_code == ExitCode.UNREACHABLE
        assert "Does the node speak TLS at all (client.tls is on)?" in done.stderr
        http = node.http_url.removeprefix("http://")
        done = dovetail({}, command, "list", "-b", http, folder=tmp_path)
        assert done.exit_code == ExitCode.UNREACHABLE
        assert "it speaks HTTP; give the port for Kafka clients" in done.stderr
        assert "Is a node running" not in done.stderr
    with pytest.raises(Unavailable, match="Does the node speak TLS at all"):
        asyncio.run(_timelines(node.bootstrap, ssl.create_default_context()))
    with pytest.raises(Unavailable, match="not the one for HTTP"):
        asyncio.run(_timelines(node.http_url.removeprefix("http://"), None))
    nobody = dovetail({}, "topic", "list", "-b", "127.0.0.1:1", folder=tmp_path)
    assert "Is a node running?" in nobody.stderr


async def _timelines(address: str, tls: ssl.SSLContext | None) -> None:
    async with connect(address, tls=tls) as client:
        await client.timelines()
