"""What `make test` says while it runs."""

from pathlib import Path

from tests.progress import LONG_FILES_S, Progress, elapsed

ROOT = Path(__file__).parent.parent.parent


def test_long_files_are_there() -> None:
    """U10: a file that is renamed keeps its place in the order and its share of the time."""
    assert [name for name in LONG_FILES_S if not (ROOT / name).exists()] == []


def test_the_share_is_one_of_time() -> None:
    """U10: half of the tests may be a hundredth of the time; what runs and what failed is said."""
    long, short = "tests/process/test_kill.py::test_a", "tests/unit/test_x.py::test_b"
    progress = Progress(100.0)
    assert progress.line(101.0) == "  0 %   0 min  1 s   looking for tests"
    progress.collected([long, short])
    progress.started(long)
    progress.started(short)
    progress.ended(short)
    progress.failed += 1
    assert progress.line(230.0) == (
        "  0 %   2 min 10 s   1 of 2 tests, 1 failed; at process/test_kill.py"
    )
    progress.ended(long)
    assert progress.line(240.0) == "100 %   2 min 20 s   2 of 2 tests, 1 failed"


def test_times_stand_in_a_column() -> None:
    """U10: minutes and seconds."""
    assert [elapsed(s) for s in (0, 61, 754.9)] == [" 0 min  0 s", " 1 min  1 s", "12 min 34 s"]
