"""The audit log: lines before and after, rotation, what a crash leaves."""

import json
from pathlib import Path

import pytest

from dovetail.clock import ManualClock
from dovetail.console.web.audit import FILES_KEPT, AuditLog
from dovetail.console.web.endpoint import Caller
from dovetail.console.web.threads import Threads
from dovetail.errors import Unavailable

ANN = Caller("token", "192.0.2.1")


def log_of(folder: Path, file_bytes_max: int = 4096) -> AuditLog:
    return AuditLog(folder, ManualClock(), Threads(), file_bytes_max=file_bytes_max)


async def test_a_change_is_written_before_and_after(tmp_path: Path) -> None:
    """U5: who, from where, what, outcome; newest first; pages follow each other."""
    log = log_of(tmp_path)
    for number in range(5):
        entry = await log.begin(ANN, "topic.create", f"t{number}", {"partitions": number})
        assert (await log.page(limit=1)).entries[0].outcome == "begun"
        await log.end(entry, "done" if number else "refused", None if number else "exists")
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert len(lines) == 10
    assert json.loads(lines[0])["from"] == "192.0.2.1"
    first = await log.page(limit=2)
    assert [entry.target for entry in first.entries] == ["t4", "t3"]
    second = await log.page(limit=10, before=first.next)
    assert [entry.target for entry in second.entries] == ["t2", "t1", "t0"]
    assert second.next is None
    assert (second.entries[-1].outcome, second.entries[-1].error) == ("refused", "exists")


async def test_a_change_that_never_ended_is_unknown(tmp_path: Path) -> None:
    """R3: a node that died in between, and half a line, hide nothing of the others."""
    log = log_of(tmp_path)
    await log.begin(ANN, "topic.delete", "orders", {})
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"id": "half')
    later = log_of(tmp_path)
    entry = await later.begin(ANN, "topic.create", "orders", {})
    await later.end(entry, "done")
    entries = (await later.page(limit=10)).entries
    assert [(e.action, e.outcome) for e in entries] == [
        ("topic.create", "done"),
        ("topic.delete", "unknown"),
    ]


async def test_files_are_rotated_and_bounded(tmp_path: Path) -> None:
    """R3: the log keeps the last files, each within its limit."""
    log = log_of(tmp_path, file_bytes_max=1_000)
    for number in range(60):
        entry = await log.begin(ANN, "topic.create", f"t{number}", {})
        await log.end(entry, "done")
    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES_KEPT + 1
    assert all(file.stat().st_size <= 1_000 for file in files)
    assert (await log.page(limit=1)).entries[0].target == "t59"
    assert len((await log.page(limit=100)).entries) >= 2 * FILES_KEPT


async def test_what_can_not_be_written_down_does_not_begin(tmp_path: Path) -> None:
    """U7: the error says that nothing was changed, and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="nothing is changed without it"):
        await log_of(tmp_path / "file").begin(ANN, "topic.delete", "orders", {})
