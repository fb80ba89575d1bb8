"""`dovetail timeline` against a real node."""

import json
import os
import pty
import subprocess
import sys

from tests import warm_python
from tests.conftest import RunningNode


def run(node: RunningNode, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dovetail", "timeline", *words, "-b", node.bootstrap]
    return warm_python.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_timeline_from_creation_to_deletion(node: RunningNode) -> None:
    """U4, B19: create, schedule, peek, consume, describe, list, delete; with their exit codes."""
    assert run(node, "create", "cli", "--config", "attempts_max=2").returncode == 0
    again = run(node, "create", "cli")
    assert again.returncode == 4
    assert "exists" in again.stderr
    assert run(node, "schedule", "cli", "hello", "--key", "k").returncode == 0
    known = run(node, "schedule", "cli", "other", "--key", "k")
    assert "existed already" in known.stderr
    assert run(node, "schedule", "cli", "-", "--in", "1h", given="one\ntwo\n").returncode == 0
    peeked = json.loads(run(node, "peek", "cli", "--json").stdout)
    # What is due in the same millisecond has no order.
    assert peeked[0]["body"] == "hello"
    assert {row["body"] for row in peeked[1:]} == {"one", "two"}
    assert peeked[0]["state"] == "due"
    consumed = run(node, "consume", "cli", "--count", "1")
    assert consumed.stdout == "hello\n"
    described = json.loads(run(node, "describe", "cli", "--json").stdout)
    assert (described["waiting"], described["due"], described["leased"]) == (2, 0, 0)
    assert described["config"]["attempts_max"] == 2
    assert "attempts_max" in run(node, "describe", "cli").stdout
    listed = json.loads(run(node, "list", "--json").stdout)
    assert next(row for row in listed if row["timeline"] == "cli")["waiting"] == 2
    assert run(node, "dead", "cli", "--json").stdout.strip() == "[]"
    refused = run(node, "delete", "cli")
    assert refused.returncode == 2
    assert "give --yes" in refused.stderr
    assert run(node, "delete", "cli", "--yes").returncode == 0
    gone = run(node, "peek", "cli")
    assert gone.returncode == 3
    assert "no timeline 'cli'" in gone.stderr


def test_a_timeline_in_use_is_operated(node: RunningNode) -> None:
    """B23: alter, pause, resume, purge; schedules listed and ended; messages and dead letters
    by id and by filter."""
    assert run(node, "create", "ops").returncode == 0
    assert run(node, "alter", "ops", "--config", "attempts_max=1").returncode == 0
    refused = run(node, "alter", "ops", "--config", "buckets=7")
    assert refused.returncode == 2
    assert "when a timeline is created" in refused.stderr
    assert run(node, "pause", "ops").returncode == 0
    described = json.loads(run(node, "describe", "ops", "--json").stdout)
    assert (described["config"]["attempts_max"], described["config"]["paused"]) == (1, True)
    assert run(node, "resume", "ops").returncode == 0

    assert run(node, "schedule", "ops", "x", "--every", "1h", "--name", "hourly").returncode == 0
    (listed,) = json.loads(run(node, "schedules", "ops", "--json").stdout)
    assert (listed["name"], listed["every_ms"]) == ("hourly", 3_600_000)
    assert run(node, "unschedule", "ops", "hourly").returncode == 0
    assert run(node, "unschedule", "ops", "hourly").returncode == 3

    assert run(node, "schedule", "ops", "a", "--in", "1h").returncode == 0
    assert run(node, "purge", "ops").returncode == 2
    purged = run(node, "purge", "ops", "--yes", "--json")
    assert json.loads(purged.stdout) == {"removed": 1}
    assert run(node, "discard", "ops").returncode == 2
    discarded = run(node, "discard", "ops", "--reason", "nothing", "--yes", "--json")
    assert json.loads(discarded.stdout) == {"dropped": 0, "left": 0}

    for key in ("ada/1", "ada/2", "bob/1"):
        assert run(node, "schedule", "ops", "a", "--in", "1h", "--key", key).returncode == 0
    assert run(node, "cancel", "ops").returncode == 2
    assert run(node, "cancel", "ops", "--key-prefix", "ada/").returncode == 2
    counted = run(node, "cancel", "ops", "--key-prefix", "ada/", "--dry-run", "--json")
    assert json.loads(counted.stdout) == {"matched": 2}
    moved = run(node, "move", "ops", "--key-prefix", "ada/", "--in", "2h", "--json")
    assert json.loads(moved.stdout) == {"moved": 2, "left": 0}
    gone = run(node, "cancel", "ops", "--key-prefix", "ada/", "--yes", "--json")
    assert json.loads(gone.stdout) == {"cancelled": 2, "left": 0}
    (left,) = json.loads(run(node, "peek", "ops", "--json").stdout)
    assert left["key"] == "bob/1"
    missing = run(node, "cancel", "ops", "999", "--json")
    assert (missing.returncode, json.loads(missing.stdout)) == (1, {"cancelled": 0, "left": 1})
    counted = run(node, "replay", "ops", "--older", "1s", "--header", "h=1", "--dry-run", "--json")
    assert json.loads(counted.stdout) == {"matched": 0}
    assert run(node, "delete", "ops", "--yes").returncode == 0


def test_what_can_not_be_is_refused_with_what_to_write_instead(node: RunningNode) -> None:
    """U7, B19: names, settings, times, cron lines; and a node that is not there."""
    bad = run(node, "create", "no good name")
    assert bad.returncode == 2
    assert "letters, digits" in bad.stderr
    unknown = run(node, "create", "x", "--config", "windowms=5")
    assert unknown.returncode == 2
    assert "window_ms" in unknown.stderr
    assert run(node, "create", "cli2").returncode == 0
    cron = run(node, "schedule", "cli2", "x", "--cron", "nonsense", "--name", "n")
    assert cron.returncode == 2
    assert "minute hour day" in cron.stderr
    assert run(node, "schedule", "cli2", "x", "--at", "soon").returncode == 2
    assert run(node, "schedule", "cli2", "x", "--cron", "0 3 * * *").returncode == 2
    assert run(node, "replay", "cli2").returncode == 2
    away = warm_python.run(
        [sys.executable, "-m", "dovetail", "timeline", "list", "-b", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert away.returncode == 5
    assert "cannot connect to" in away.stderr


def test_a_reader_that_leaves_makes_no_dead_letters(node: RunningNode) -> None:
    """F8: `consume | head -1`: what cannot be printed any more has not failed, and stays due."""
    bodies = "".join(f"{number}\n" for number in range(20))
    assert run(node, "create", "piped", "--config", "attempts_max=1").returncode == 0
    assert run(node, "schedule", "piped", "-", given=bodies).returncode == 0

    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dovetail", "timeline", "consume", "piped"]
    ended = warm_python.run(
        [*command, "-b", node.bootstrap],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")

    assert json.loads(run(node, "dead", "piped", "--json").stdout) == []
    left = json.loads(run(node, "peek", "piped", "--limit", "100", "--json").stdout)
    assert [(row["state"], row["attempts"]) for row in left] == [("due", 0)] * 20


def test_a_message_does_not_command_the_terminal(node: RunningNode) -> None:
    """F47: escape sequences of keys and bodies are shown as text, in tables, lines and JSON."""
    text = "\x1b]0;owned\x07\x9b31m"
    assert run(node, "create", "hostile").returncode == 0
    assert run(node, "schedule", "hostile", text, "--key", text).returncode == 0
    for form in ([], ["--json"]):
        shown = run(node, "peek", "hostile", *form).stdout
        assert "owned" in shown
        assert not set(shown) & {"\x1b", "\x07", "\x9b"}

    terminal, inner = pty.openpty()
    command = [sys.executable, "-m", "dovetail", "timeline", "consume", "hostile", "-n", "1"]
    warm_python.run([*command, "-b", node.bootstrap], stdout=inner, check=True, timeout=60)
    printed = os.read(terminal, 1000).decode()
    os.close(inner)
    os.close(terminal)
    assert "\\x1b]0;owned\\x07\\x9b31m" in printed
