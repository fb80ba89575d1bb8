"""The command line is light: what a command does not need is not imported."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from dovetail.cli.app import COMMANDS, app
from dovetail.cli.loading import load_command
from dovetail.cli.options import RootOptions, settings_of, target_of
from dovetail.errors import InvalidSetting

#: Needed by nodes and by other commands; each takes 20 ms of processor or much more.
HEAVY = {
    "aiohttp",
    "asyncpg",
    "dovetail.console",
    "dovetail.kafka.codec.messages",
    "dovetail.kafka.handlers",
    "dovetail.log",
    "dovetail.node",
    "dovetail.outbox",
    "dovetail.settings.sections",
    "dovetail.spark",
    "dovetail.storage",
    "dovetail.teams",
    "dovetail.timeline",
    "grpc",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pydantic",
    "pyspark",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "uvloop",
}
#: `topic list` is a Kafka client that prints a table; help is neither.
CLIENT = {"asyncio", "confluent_kafka", "dovetail.admin", "dovetail.settings.sources", "msgspec"}

_RUN = """
import json, sys
from dovetail.cli import main
sys.argv = ["dovetail", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def commands_in(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("dovetail.cli.commands.")}


def test_help_imports_no_command(tmp_path: Path) -> None:
    """U4: `dovetail --help` imports neither a command nor a client."""
    found = imported(tmp_path, "--help")
    assert found & (HEAVY | CLIENT) == set()
    assert commands_in(found) == set()


def test_topic_list_imports_what_a_client_needs(tmp_path: Path) -> None:
    """U4: `dovetail topic list` imports one command, the Kafka client and no part of a node."""
    # Nothing listens on port 1; all that the command needs is imported by then.
    found = imported(tmp_path, "topic", "list", "--bootstrap", "127.0.0.1:1", "--timeout", "1s")
    assert "confluent_kafka" in found
    assert found & HEAVY == set()
    assert commands_in(found) == {"dovetail.cli.commands.topic"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    """U4: the line in `dovetail --help` is the first one of the command's own help."""
    command = load_command(name, COMMANDS[name])
    assert command.name == name
    assert inspect.cleandoc(command.help).partition("\n\n")[0].replace("\n", " ") == (
        COMMANDS[name].help
    )


def context(*assignments: str) -> Any:
    root: Any = typer.main.get_command(app)
    return typer.Context(root, obj=RootOptions(assignments=assignments))


@pytest.mark.parametrize("bootstrap", [None, "queue:9092", "[::1]:9092"])
@pytest.mark.parametrize("timeout", [None, "5s", "100ms", "1h"])
@pytest.mark.parametrize("assignments", [(), ("log.retention_ms=1d",), ("client.user=ada",)])
def test_the_short_way_to_the_address_is_the_settings_own(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bootstrap: str | None,
    timeout: str | None,
    assignments: tuple[str, ...],
) -> None:
    """U3: without any other setting the sections are not read, and say the same."""
    monkeypatch.chdir(tmp_path)
    given = [*assignments]
    given += [] if bootstrap is None else [f"client.bootstrap={bootstrap}"]
    given += [] if timeout is None else [f"client.timeout_ms={timeout}"]
    settings = settings_of(context(*given))
    for target in (
        target_of(context(*assignments), bootstrap, timeout),
        target_of(context(*given), None, None),
    ):
        assert target.bootstrap == settings.bootstrap()
        assert target.timeout_s == settings.client.timeout_ms / 1000
        assert target.security == settings.client.kafka()


@pytest.mark.parametrize("timeout", ["5x", "1ms", "2h", ""])
def test_a_wrong_time_limit_is_refused_by_the_settings(timeout: str) -> None:
    """U3: the short way leaves every mistake to the settings, which name it."""
    with pytest.raises(InvalidSetting, match=r"client\.timeout_ms"):
        target_of(context(), None, timeout)
