"""The command line without a node: help, settings, errors, exit codes."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.client import parse_bootstrap
from dovetail.cli.outcome import EXIT_CODES_HELP, ExitCode
from dovetail.cli.position import Position, parse_position
from dovetail.errors import InvalidInput

COMMANDS = [
    ["up"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "alter"],
    ["topic", "delete"],
    ["produce"],
    ["consume"],
    ["group", "list"],
    ["group", "describe"],
    ["group", "reset"],
    ["config", "show"],
    ["bench"],
]
CLIENT_COMMANDS = [
    ["topic", "create", "t"],
    ["topic", "list"],
    ["topic", "describe", "t"],
    ["topic", "alter", "t", "--partitions", "2"],
    ["topic", "delete", "t"],
    ["produce", "t", "--value", "v"],
    ["consume", "t"],
    ["consume", "t", "--group", "g"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "reset", "g", "--to", "earliest"],
    ["bench"],
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator["Run"]:
    monkeypatch.chdir(tmp_path)
    yield Run()


class Run:
    """Runs a command in an empty folder with a wide terminal."""

    def __call__(self, *arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **environment})


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address that refuses connections: bound, so nobody else takes it, and not listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(run: Run, command: list[str]) -> None:
    """U4: help shows examples."""
    result = run(*command, "--help")
    assert result.exit_code == ExitCode.OK
    assert "Examples" in result.stdout
    assert f"dovetail {' '.join(command)}" in result.stdout


def test_the_help_tells_the_exit_codes(run: Run) -> None:
    """U4: exit codes mean something, and the help says what."""
    shown = " ".join(run("--help").stdout.split())
    assert EXIT_CODES_HELP in shown


def test_help_is_instant() -> None:
    """U4: `--help` needs no client library and no broker, so it starts at once."""
    code = (
        "import sys, dovetail.cli.app; "
        "heavy = {'confluent_kafka', 'pydantic', 'starlette', 'uvicorn', 'dovetail.broker'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=" ".join)
def test_an_unreachable_node_is_exit_code_5_at_once(
    run: Run, closed_port: str, command: list[str]
) -> None:
    """U4, U7: no traceback, the reason and what to do, and no wait for a timeout."""
    begin_s = time.monotonic()
    result = run(*command, "--bootstrap", closed_port)
    assert time.monotonic() - begin_s < 3.0
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"cannot connect to {closed_port}: connection refused" in result.stderr
    assert "dovetail up" in result.stderr
    assert "Traceback" not in result.output


def test_the_address_comes_from_settings(run: Run, closed_port: str) -> None:
    """U3, U4: without --bootstrap, settings say where the node is."""
    port = closed_port.rpartition(":")[2]
    for result in (
        run("topic", "list", DOVETAIL_CLIENT_BOOTSTRAP=closed_port),
        run("topic", "list", DOVETAIL_KAFKA_PORT=port),
        run("--set", f"kafka.port={port}", "topic", "list"),
    ):
        assert result.exit_code == ExitCode.UNREACHABLE
        assert closed_port in result.stderr


def test_config_show_tells_value_and_origin(run: Run, tmp_path: Path) -> None:
    """U3: `config show` prints each value and where it came from."""
    (tmp_path / "dovetail.toml").write_text('[log]\nretention_ms = "2d"\n')
    arguments = ("config", "show", "--set", "kafka.port=0")
    environment = {"DOVETAIL_NODE_NAME": "here"}
    rows = {row["name"]: row for row in json.loads(run(*arguments, "--json", **environment).stdout)}
    assert rows["log.retention_ms"]["value"] == 172_800_000
    assert rows["log.retention_ms"]["origin"] == "file"
    assert rows["log.retention_ms"]["origin_name"] == "dovetail.toml"
    assert rows["log.retention_ms"]["variable"] == "DOVETAIL_LOG_RETENTION_MS"
    assert (rows["node.name"]["value"], rows["node.name"]["origin"]) == ("here", "environment")
    assert (rows["kafka.port"]["value"], rows["kafka.port"]["origin"]) == (0, "flag")
    assert rows["kafka.host"]["origin"] == "default"
    assert all(row["description"] for row in rows.values())
    table = run(*arguments, **environment).stdout
    for text in ("2d", "file dovetail.toml", "environment DOVETAIL_NODE_NAME", "256MiB"):
        assert text in table


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("--set", "kafka.prot=1", "config", "show"), {}, "kafka.port"),
        (("config", "show", "--set", "kafka.prot=1"), {}, "kafka.port"),
        (("config", "show"), {"DOVETAIL_KAFKA_PROT": "1"}, "DOVETAIL_KAFKA_PORT"),
        (("config", "show", "--config", "absent.toml"), {}, "absent.toml"),
        (("up", "--set", "kafka.prot=1"), {}, "kafka.port"),
        (("topic", "create", "t", "--retention", "soon"), {}, "7d"),
        (("topic", "create", "t", "--config", "x"), {}, "name=value"),
        (("topic", "alter", "t"), {}, "nothing to alter"),
        (("produce", "t", "--value", "v", "--file", "f"), {}, "excludes --value"),
        (("produce", "t", "--value", "v", "--header", "x"), {}, "name=value"),
        (("consume", "t", "--from", "soon"), {}, "is no position"),
        (("consume", "t", "--group", "g", "--from", "7"), {}, "group reset"),
        (("group", "reset", "g", "--to", "soon"), {}, "is no position"),
        (("topic", "list", "--bootstrap", "nonsense:port"), {}, "is no address"),
        (("topic", "creat"), {}, "create"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    run: Run, arguments: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    """U4, U7: wrong usage is told before anything is tried, and how to write it."""
    result = run(*arguments, **environment)
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("extra", [[], ["--follow"], ["--follow", "--group", "g"]], ids=" ".join)
def test_ctrl_c_before_the_node_answered_is_no_success(tmp_path: Path, extra: list[str]) -> None:
    """U4: following ends well by Ctrl-C only once it has begun; before, it is exit code 130."""
    with socket.create_server(("127.0.0.1", 0)) as silent_node:
        silent_node.settimeout(30)
        address = f"127.0.0.1:{silent_node.getsockname()[1]}"
        command = ["consume", "t", *extra, "--timeout", "1s", "--bootstrap", address]
        process = subprocess.Popen(
            [sys.executable, "-c", "from dovetail.cli import main; main()", *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            connection, _ = silent_node.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position("beginning")),
        ("Earliest", Position("beginning")),
        ("end", Position("end")),
        ("latest", Position("end")),
        ("1200", Position("offset", 1200)),
        ("1970-01-01T00:00:01Z", Position("time", 1000)),
        ("1970-01-01T02:00:01.5+02:00", Position("time", 1500)),
    ],
)
def test_positions(text: str, position: Position) -> None:
    """U4: positions are words, offsets or times."""
    assert parse_position(text) == position


@pytest.mark.parametrize("text", ["", "-1", "1.5", "tomorrow", "0001-01-01T00:00+14:00x"])
def test_no_position(text: str) -> None:
    """U7: what is no position is refused with examples."""
    with pytest.raises(InvalidInput, match="beginning, end, an offset"):
        parse_position(text)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9092", [("127.0.0.1", 9092)]),
        ("queue", [("queue", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    """U4: a bootstrap address is host:port, or several with commas."""
    assert parse_bootstrap(text) == addresses
