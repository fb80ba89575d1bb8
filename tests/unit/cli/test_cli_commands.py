"""The command line without a node: help, settings, errors, exit codes."""

import errno
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import warm_python
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.commands.up import local_address, resolves
from dovetail.cli.outcome import EXIT_CODES_HELP, ExitCode
from dovetail.cli.output import print_table
from dovetail.cli.program import program
from dovetail.cli.starting import error_of_address
from dovetail.settings import Flag, load_settings

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
    ["topic", "delete", "t", "--yes"],
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


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=" ".join)
def test_an_unreachable_node_is_exit_code_5_at_once(
    run: Run, closed_port: str, command: list[str]
) -> None:
    """U4, U7: no traceback, the reason and what to do, and no wait for a timeout."""
    result = run(*command, "--bootstrap", closed_port, DOVETAIL_CLIENT_TIMEOUT_MS="30m")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"cannot connect to {closed_port}: connection refused" in result.stderr
    assert "dovetail up" in result.stderr
    assert "Traceback" not in result.output


def test_brokers_that_refuse_for_one_reason_give_it_once(run: Run, closed_port: str) -> None:
    """U7: three brokers that are away are one line with three addresses, not three explanations."""
    other = closed_port.replace("127.0.0.1", "127.0.0.2")
    result = run("topic", "list", "--bootstrap", f"{closed_port},{other}")
    assert f"cannot connect to {closed_port}, {other}: connection refused" in result.stderr


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
        (("topic", "alter", "t"), {}, "--retention-bytes"),
        (("topic", "delete", "t"), {}, "give --yes"),
        (("topic", "delete", "__dovetail_groups", "--yes"), {}, "is internal"),
        (("produce", "t", "--value", "v", "--compression", "bogus"), {}, "--compression"),
        (("produce", "t", "--value", "v", "--file", "f"), {}, "excludes --value"),
        (("produce", "t", "--value", "v", "--header", "x"), {}, "name=value"),
        (("consume", "t", "--from", "soon"), {}, "is not a position"),
        (("consume", "t", "--group", "g", "--from", "7"), {}, "group reset"),
        (("group", "reset", "g", "--to", "soon"), {}, "is not a position"),
        (("topic", "list", "--bootstrap", "nonsense:port"), {}, "is not of the form host:port"),
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


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_flags_are_not_shown_as_if_they_took_a_value(run: Run, command: list[str]) -> None:
    """U4: the help of a flag names no type."""
    assert "bool" not in run(*command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--data-dir", "file"), ["/file is a file", "--data-dir (node.data_dir)"]),
        (("--data-dir", "file/below"), ["lies below a file", "--data-dir (node.data_dir)"]),
        (("--host", "nosuchhost.invalid"), ["--host nosuchhost.invalid (kafka.host)"]),
        (("--host", "192.0.2.1"), ["--host 192.0.2.1 (kafka.host)", "--advertised-host"]),
    ],
)
def test_a_node_that_cannot_start_says_which_flag_to_change(
    tmp_path: Path, arguments: tuple[str, ...], messages: list[str]
) -> None:
    """U7: a folder or an address that cannot be used is one message, exit code 2."""
    (tmp_path / "file").touch()
    done = _up(tmp_path, "--port", "0", "--no-http", *arguments)
    assert done.returncode == ExitCode.USAGE
    assert "Traceback" not in done.stderr
    for message in messages:
        assert message in done.stderr


@pytest.mark.parametrize(
    ("flag", "others", "hint"),
    [
        ("--port", ("--no-http",), "--port (kafka.port)"),
        ("--http-port", ("--port", "0"), "--http-port, 0 for any free one, or --no-http"),
    ],
)
def test_a_port_in_use_names_its_flag(
    tmp_path: Path, flag: str, others: tuple[str, ...], hint: str
) -> None:
    """U7: which of the two ports is taken is told with the flag that changes it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = _up(tmp_path, flag, str(taken.getsockname()[1]), *others)
    assert done.returncode == ExitCode.FAILED
    assert "in use" in done.stderr
    assert hint in done.stderr


def _up(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    code = "from dovetail.cli import main; main()"
    return warm_python.run(
        [sys.executable, "-c", code, "up", *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "error",
    [
        (errno.EACCES, "permission denied", "--port 80 (kafka.port)"),
        (errno.EADDRINUSE, "in use", "--port (kafka.port)"),
    ],
)
def test_errors_of_the_address(error: tuple[int, str, str]) -> None:
    """U7: what the system says about the address names the flag; what it says of files does not."""
    settings = load_settings(flags=[Flag("kafka.port", 80, "--port")])
    number, text, expected = error
    assert expected in str(error_of_address(OSError(number, text), settings))
    assert error_of_address(OSError(number, text, "a-file"), settings) is None


def test_hints_name_the_program_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """U4: a command in a hint can be copied, whether the program is on the path or not."""
    called = tmp_path / "venv" / "bin" / "dovetail"
    called.parent.mkdir(parents=True)
    called.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "venv/bin/dovetail"
    monkeypatch.setenv("PATH", str(called.parent))
    assert program() == "dovetail"


@pytest.mark.parametrize(
    ("kafka", "address"),
    [
        ("127.0.0.1:9192", "127.0.0.1:9192"),
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        ("[::]:9092", "[::1]:9092"),
        ("queue:1", "queue:1"),
    ],
)
def test_the_address_for_this_machine(kafka: str, address: str) -> None:
    """U2: a node that listens everywhere is reached at the local address."""
    assert local_address(kafka) == address


def test_a_host_that_nobody_knows_does_not_resolve() -> None:
    """U2: the panel can say that the advertised host leads nowhere."""
    assert resolves("127.0.0.1")
    assert not resolves("nosuchhost.invalid")


def test_tables_keep_numbers_whole_and_leave_empty_columns_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """U4: a narrow window breaks neither numbers nor names, and COLUMNS is its width."""
    monkeypatch.setenv("COLUMNS", "50")
    columns = ["topic", "end", "host", "text", "member"]
    print_table(columns, [("orders-of-today", 123_456_789, None, "words that wrap", "m" * 40)])
    shown = capsys.readouterr()
    assert "123,456,789" in shown.out
    assert "orders-of-today" in shown.out
    assert "host" not in shown.out
    assert "too narrow for: member" in shown.err
    assert max(map(len, shown.out.splitlines())) <= 50
    monkeypatch.delenv("COLUMNS")
    print_table(columns, [("t" * 200, 123_456_789, None, "words that wrap", "m" * 40)])
    assert "member" in capsys.readouterr().out


def test_produce_gives_up_when_the_timeout_says(run: Run) -> None:
    """U7: a node that takes connections and is silent ends in --timeout, not in half an hour."""
    with socket.create_server(("127.0.0.1", 0)) as silent_node:
        address = f"127.0.0.1:{silent_node.getsockname()[1]}"
        result = run("produce", "t", "--value", "v", "--timeout", "1s", "--bootstrap", address)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "kafka.advertised_host" in result.stderr


@pytest.mark.parametrize("extra", [[], ["--follow"], ["--follow", "--group", "g"]], ids=" ".join)
def test_ctrl_c_before_the_node_answered_is_no_success(tmp_path: Path, extra: list[str]) -> None:
    """U4: following ends well by Ctrl-C only once it has begun; before, it is exit code 130."""
    with socket.create_server(("127.0.0.1", 0)) as silent_node:
        silent_node.settimeout(30)
        address = f"127.0.0.1:{silent_node.getsockname()[1]}"
        command = ["consume", "t", *extra, "--timeout", "1s", "--bootstrap", address]
        process = warm_python.Popen(
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
