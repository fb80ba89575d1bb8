"""What `make demo` runs, small, with chaos; and that its proof fails when something is missing."""

import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from examples.shop.results import FATES
from tests.conftest import RunningNode, running_node
from tests.java import need_java

ROOT = Path(__file__).parent.parent.parent.parent
#: Spark starts in a quarter of a minute, and beside other tests in much more.
RUN_S_MAX = 280
#: `make soak` sets more, and lets everything be hit.
MINUTES = os.environ.get("DEMO_MINUTES", "0.2")
CHAOS = os.environ.get("DEMO_CHAOS", "node,relay,notifier")
#: Orders a second. They come while Spark starts, too, and each means work for five teams.
RATE = os.environ.get("DEMO_RATE", "4")
#: All processes of this run inherit it.
MARK = ("DEMO_TEST", uuid.uuid4().hex)

LONG = "DEMO_MINUTES" in os.environ

pytestmark = pytest.mark.timeout(0 if LONG else RUN_S_MAX + 60)


def run_module(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**environment, MARK[0]: MARK[1]},
        capture_output=True,
        text=True,
        timeout=None if LONG else RUN_S_MAX,
        check=False,
    )


def left_behind() -> list[psutil.Process]:
    """Processes of the run that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK[0]) == MARK[1]:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module", autouse=True)
def swept() -> Iterator[None]:
    """A run that was cut short leaves nothing behind either."""
    yield
    for process in left_behind():
        process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run, which passed."""
    need_java()
    kept = tmp_path_factory.mktemp("demo") / "kept"
    wanted = ["--minutes", MINUTES, "--rate", RATE, "--chaos", CHAOS, "--seed", "5"]
    done = run_module("examples.shop.demo", *wanted, "--plain", "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything that went in came out, once." in done.stdout
    assert "kill -9" in done.stdout or "SIGSTOP" in done.stdout
    assert "the node's web page: http://" in done.stdout
    assert "Traceback" not in done.stderr
    assert left_behind() == []
    yield kept


@pytest.fixture(scope="module")
def kept_node(folder: Path) -> Iterator[RunningNode]:
    """The node of the run, started again on its data."""
    with running_node(folder / "node") as node:
        yield node


def check(folder: Path, node: RunningNode) -> "subprocess.CompletedProcess[str]":
    where = ["--database", str(folder / "shop.db"), "--bootstrap", node.bootstrap]
    pause = max(2.0, float(MINUTES) * 15)
    return run_module("examples.shop.check", *where, "--remind-after", str(min(10.0, pause)))


def test_the_whole_story_holds_under_chaos(folder: Path, kept_node: RunningNode) -> None:
    """U1: database, outbox, log, teams on Spark, timeline and stream; the counts hold, again."""
    found = check(folder, kept_node)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_loss_that_is_planted_is_seen(folder: Path, kept_node: RunningNode) -> None:
    """U1: a deleted row and a doubled record make the proof fail, with exit code 1."""
    with closing(sqlite3.connect(folder / "shop.db")) as db, db:
        [(item, fate)] = db.execute("SELECT id, fate FROM items LIMIT 1")
        db.execute("DELETE FROM items WHERE id = ?", (item,))
    [topic] = [name for name, told in FATES.items() if told == fate]
    producer = Producer({"bootstrap.servers": kept_node.bootstrap})
    producer.produce(topic, b'"again"', key=item.encode())
    assert producer.flush(30) == 0
    found = check(folder, kept_node)
    assert found.returncode == 1
    assert f"items settled: 1 lost: {item}" in found.stdout
    assert f"1 doubled: {item}" in found.stdout
