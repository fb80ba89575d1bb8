"""Completion in a real bash: TAB, as a person presses it."""

import os
import pty
import select
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests import warm_python

WAIT_S_MAX = 60.0
PROMPT = "ready> "


class Bash:
    """An interactive bash in a terminal of its own, without anybody's start-up files."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._process = warm_python.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment | {"PS1": PROMPT, "TERM": "dumb", "INPUTRC": os.devnull},
            start_new_session=True,
        )
        os.close(theirs)
        self.wait_for(PROMPT)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> str:
        """Reads until the text is shown; only what comes from now on counts."""
        shown, deadline_s = "", time.monotonic() + WAIT_S_MAX
        while text not in shown:
            assert time.monotonic() < deadline_s, f"never shown: {text!r} in {shown!r}"
            if select.select([self._ours], [], [], 0.2)[0]:
                shown += os.read(self._ours, 65536).decode(errors="replace")
        return shown

    def completed(self, line: str, expected: str) -> None:
        """TAB after `line` adds `expected`; the line is cleared then."""
        self.type(line)
        self.wait_for(line[-10:])
        self.type("\t")
        self.wait_for(expected)
        self.type("\x15")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture(scope="module")
def environment(node, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`dovetail` is on the path, and the settings lead to the node."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "dovetail"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dovetail "$@"\n')
    program.chmod(0o755)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.create_topics([NewTopic("invoices"), NewTopic("reminders")]).values():
        future.result(WAIT_S_MAX)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    return inherited | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "DOVETAIL_CLIENT_BOOTSTRAP": node.bootstrap,
    }


@pytest.fixture(scope="module")
def bash(environment: dict[str, str]) -> Iterator[Bash]:
    shell = Bash(environment)
    shell.type("source <(dovetail completion bash)\n")
    shell.wait_for(PROMPT)
    yield shell
    shell.close()


def test_nouns_verbs_and_options(bash: Bash) -> None:
    """U4: what is typed half is completed: a noun, its verb, an option."""
    bash.completed("dovetail tim", "eline ")
    bash.completed("dovetail topic descr", "ibe ")
    bash.completed("dovetail topic create x --ret", "ention")


def test_names_of_the_node(bash: Bash) -> None:
    """U4: topics and settings are completed by asking where they are."""
    bash.completed("dovetail topic describe inv", "oices ")
    bash.completed("dovetail consume rem", "inders ")
    bash.completed("dovetail up --set kafka.advertised_h", "ost=")


def asked(environment: dict[str, str], *words: str) -> list[str]:
    """What the program offers for the last word, as the script of bash asks for it."""
    done = warm_python.run(
        [sys.executable, "-m", "dovetail"],
        env=environment
        | {
            "_DOVETAIL_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(["dovetail", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S_MAX,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_internal_topics_are_not_offered(environment: dict[str, str]) -> None:
    """U4: what people made is offered, what the node keeps for itself is not."""
    assert asked(environment, "topic", "describe", "") == ["invoices", "reminders"]


def test_without_a_node_nothing_is_offered_and_nothing_is_said(environment: dict[str, str]) -> None:
    """U4, U7: a TAB never shows an error, whatever is wrong."""
    away = environment | {"DOVETAIL_CLIENT_BOOTSTRAP": "127.0.0.1:1"}
    for words in (["topic", "describe", ""], ["group", "describe", ""], ["timeline", "peek", ""]):
        assert asked(away, *words) == []
    assert asked(environment | {"DOVETAIL_CLIENT_NO_SUCH": "1"}, "topic", "describe", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_understands(
    shell: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """U4: the three shells; each reads its script where it is installed."""
    done = warm_python.run(
        [sys.executable, "-m", "dovetail", "completion", shell],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_DOVETAIL_COMPLETE" in done.stdout
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(done.stdout)
        warm_python.run([shell, "-n", tmp_path / "script"], check=True)
