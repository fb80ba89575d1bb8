"""A process is killed amid its transactions, again and again, on one file."""

import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests import warm_python

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator

CHILD = Path(__file__).with_name("crash_child.py")
KILLS = 10


@dataclass(slots=True)
class Acknowledged:
    """What the children said before they died."""

    revisions: dict[str, int] = field(default_factory=dict)
    count: int = 0
    last: int = 0

    def take(self, line: str) -> int:
        """Takes note of one line; its revision."""
        what, name, revision = line.split()
        if what == "put":
            self.revisions[name] = int(revision)
        else:
            assert int(name) > self.count
            self.count = int(name)
        self.last = max(self.last, int(revision))
        return int(revision)


def run_and_kill(path: Path, run: int, *, lines_before: int, acknowledged: Acknowledged) -> None:
    """Lets a child write, kills it, reads everything that it still said."""
    floor = acknowledged.last
    with warm_python.Popen(
        [sys.executable, str(CHILD), str(path), str(run)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for number, line in enumerate(child.stdout):
            if number == lines_before:
                child.kill()
            # Only a line that lost its end to the kill was not said.
            if line.endswith("\n"):
                assert acknowledged.take(line) > floor
    assert child.returncode == -9


async def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    """L6: after each of ten kills every acknowledged transaction is there, whole; revisions rise.

    Counts by compare-and-set lose none either, and the killed process's lease is gone.
    """
    path = tmp_path / "coordination.db"
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    acknowledged = Acknowledged()
    for run in range(KILLS):
        lines_before = chance.randrange(1, 400)
        run_and_kill(path, run, lines_before=lines_before, acknowledged=acknowledged)
        async with await EmbeddedCoordinator.open(path, clock=SystemClock()) as coordinator:
            snapshot = await coordinator.range("")
        items = {item.key: item for item in snapshot.items}
        assert snapshot.revision > acknowledged.last
        acknowledged.last = snapshot.revision
        for key, revision in acknowledged.revisions.items():
            assert items[key].revision == revision
            assert items[key].value == key.encode()
        puts = {key for key in items if key.startswith("put/")}
        assert {key for key in items if key.startswith("twin/")} == {f"twin/{key}" for key in puts}
        assert int(items["count"].value) >= acknowledged.count
        acknowledged.count = int(items["count"].value)
        assert "alive" not in items
    assert len(acknowledged.revisions) > KILLS
