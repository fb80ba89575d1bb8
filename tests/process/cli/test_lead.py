"""`dovetail lead`: a command runs on one machine of several, and ends before its lease does."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import warm_python
from tests.conftest import NodeFactory, RunningNode

from dovetail import connect, connect_blocking
from dovetail.cli.lead import guard
from dovetail.cli.lead.guard import due_signal, exit_code
from dovetail.errors import InvalidInput

SECONDS_MAX = 60.0
LEASE = "2s"

#: Says who it is, and that it is alone: a lock that the kernel frees when its process is dead.
_WORKER = """
import fcntl, os, signal, sys, time
journal, lock = sys.argv[1:3]

def say(word):
    with open(journal, "a") as file:
        file.write(f"{word} {os.environ['LEAD_TERM']} {os.getpid()}\\n")

held = open(lock, "w")
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("TWO")
    sys.exit(1)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: say("term"))
say("began")
while True:
    time.sleep(0.02)
"""


class Scene:
    """Candidates of one name, and what their commands wrote."""

    def __init__(self, node: RunningNode, folder: Path) -> None:
        self.node = node
        self.name = f"n-{uuid.uuid4().hex[:8]}"
        self.journal = folder / "journal"
        self.journal.touch()
        self.notes = folder / "notes"
        self._lock = folder / "lock"
        self._script = folder / "worker.py"
        self._script.write_text(_WORKER)
        self.candidates: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(self._script), str(self.journal), str(self._lock), *words]
        return self.run(*command)

    def run(self, *command: str) -> subprocess.Popen[str]:
        with self.notes.open("a") as notes:
            started = warm_python.Popen(
                [
                    *(sys.executable, "-m", "dovetail", "lead", self.name, "--lease", LEASE),
                    *("--bootstrap", self.node.bootstrap, "--", *command),
                ],
                stdin=subprocess.DEVNULL,
                stderr=notes,
                text=True,
            )
        self.candidates.append(started)
        return started

    def said(self, word: str) -> list[tuple[int, int]]:
        """Terms and process ids of those who said it."""
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        return [(int(term), int(pid)) for said, term, pid in lines if said == word]

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not holds():
            assert time.monotonic() < deadline, self.journal.read_text() + self.notes.read_text()
            time.sleep(0.02)

    def leader(self) -> subprocess.Popen[str]:
        """The candidate whose command began last."""
        self.wait(lambda: bool(self.said("began")))
        pid = self.said("began")[-1][1]
        guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        parent = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
        return next(each for each in self.candidates if each.pid == parent)

    def end(self) -> None:
        for each in self.candidates:
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.wait()
        self.wait(lambda: not any(_lives(pid) for _, pid in self.said("began")))


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@contextmanager
def a_scene(node: RunningNode, folder: Path) -> Iterator[Scene]:
    scene = Scene(node, folder)
    try:
        yield scene
    finally:
        scene.end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_three_runs_and_another_takes_over(
    how: signal.Signals, node: RunningNode, tmp_path: Path
) -> None:
    """S13: killed or stopped, the command of the old leader has ended before the next begins."""
    with a_scene(node, tmp_path) as scene:
        for _ in range(3):
            scene.start("stubborn")
        for round_number in (1, 2):
            leader = scene.leader()
            _, pid = scene.said("began")[-1]
            leader.send_signal(how)
            scene.wait(lambda n=round_number: len(scene.said("began")) == n + 1)
            assert not _lives(pid)
        terms = [term for term, _ in scene.said("began")]
        assert terms == sorted(set(terms))
        assert scene.said("TWO") == []


def test_the_command_ends_while_no_broker_answers(
    node_factory: NodeFactory, tmp_path: Path
) -> None:
    """S13: and begins again, under a higher term, when one does."""
    node = node_factory()
    with a_scene(node, tmp_path) as scene:
        scene.start()
        scene.leader()
        _, pid = scene.said("began")[0]
        node.kill()
        scene.wait(lambda: not _lives(pid))
        node.start()
        scene.wait(lambda: len(scene.said("began")) == 2)
        first, second = (term for term, _ in scene.said("began"))
        assert first < second


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["true"], 0),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", 'test "$LEAD_TERM" -gt 0 && test -n "$LEAD_NAME"'], 0),
        (["/no/such/command"], 127),
        (["no-such-command"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_codes(command: list[str], code: int, node: RunningNode, tmp_path: Path) -> None:
    """S13, U4: as a shell gives them."""
    with a_scene(node, tmp_path) as scene:
        assert scene.run(*command).wait(SECONDS_MAX) == code


def test_signals_reach_the_command(node: RunningNode, tmp_path: Path) -> None:
    """S13: the first may be handled, the second ends it; who stands by just stops."""
    told = tmp_path / "told"
    script = f"trap 'echo usr1 >> {told}' USR1; trap 'echo term >> {told}; exit 3' TERM; "
    script += f"echo began >> {told}; while :; do sleep 0.05; done"
    with a_scene(node, tmp_path) as scene:
        leading = scene.run("sh", "-c", script)
        scene.wait(told.exists)
        standing = scene.run("true")
        scene.wait(lambda: scene.notes.read_text().count("standing by") == 2)
        leading.send_signal(signal.SIGUSR1)
        scene.wait(lambda: "usr1" in told.read_text())
        standing.send_signal(signal.SIGTERM)
        assert standing.wait(SECONDS_MAX) == 0
        leading.send_signal(signal.SIGTERM)
        assert leading.wait(SECONDS_MAX) == 3

        stubborn = scene.start("stubborn")
        scene.wait(lambda: bool(scene.said("began")))
        stubborn.send_signal(signal.SIGTERM)
        scene.wait(lambda: bool(scene.said("term")))
        stubborn.send_signal(signal.SIGTERM)
        assert stubborn.wait(SECONDS_MAX) == 137


def test_nothing_of_the_command_is_left_behind(node: RunningNode, tmp_path: Path) -> None:
    """S13: what it started in the background ends with it."""
    pids = tmp_path / "pids"
    with a_scene(node, tmp_path) as scene:
        done = scene.run("sh", "-c", f"sleep 600 & echo $! > {pids}; exit 0")
        assert done.wait(SECONDS_MAX) == 0
        scene.wait(lambda: not _lives(int(pids.read_text())))


async def test_a_program_leads_and_hands_over(node: RunningNode) -> None:
    """S13: from Python, with asyncio; the next one leads at once, under a higher term."""
    name = f"n-{uuid.uuid4().hex[:8]}"
    terms = []
    async with connect(node.bootstrap) as first, connect(node.bootstrap) as second:
        for client in (first, second, first):
            async with client.lead(name, lease="30s") as lead:
                assert lead.valid
                terms.append(lead.term)
            assert not lead.valid
            assert lead.lost.is_set()
        with pytest.raises(InvalidInput):
            async with first.lead("a b"):
                raise AssertionError
    assert terms == sorted(set(terms))


def test_a_program_without_asyncio_leads(node: RunningNode) -> None:
    """S13: the blocking facade."""
    name = f"n-{uuid.uuid4().hex[:8]}"
    with connect_blocking(node.bootstrap) as client:
        with client.lead(name) as lead:
            assert lead.valid
            first = lead.term
        with client.lead(name) as lead:
            assert lead.term > first
        assert not lead.valid


@pytest.mark.parametrize("left_ms", [500, -1])
def test_a_guard_that_hears_nothing_ends_the_command_in_time(left_ms: int, tmp_path: Path) -> None:
    """S13: `dovetail lead` was stopped between starting it and its first word; the command ran for
    as long as that lasted, beside the next leader's. A time that is over begins nothing."""
    read, write = os.pipe()
    began = tmp_path / "began"
    ended = subprocess.run(
        [
            *(sys.executable, "-I", guard.__file__, str(read), str(guard.now_ms() + left_ms)),
            *("200", "sh", "-c", f"trap '' TERM; : > {began}; while :; do sleep 0.1; done"),
        ],
        pass_fds=(read,),
        timeout=SECONDS_MAX,
        check=False,
    )
    os.close(read)
    os.close(write)
    assert ended.returncode == (137 if left_ms > 0 else 143)
    assert began.exists() == (left_ms > 0)


def test_when_the_guard_sends_what() -> None:
    """S13: SIGTERM once, SIGKILL later, nothing before."""
    assert due_signal(99, 100, 10, asked=False) is None
    assert due_signal(100, 100, 10, asked=False) == signal.SIGTERM
    assert due_signal(109, 100, 10, asked=True) is None
    assert due_signal(110, 100, 10, asked=True) == signal.SIGKILL
    assert due_signal(500, 100, 10, asked=False) == signal.SIGKILL
    assert [exit_code(status) for status in (0, 7, -9)] == [0, 7, 137]
