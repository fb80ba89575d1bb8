"""Functions that travel to Spark's workers, and those that cannot."""

import functools
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from dovetail.teams import Pipeline, Team
from dovetail.teams.travel.parcel import CannotTravel, Parcel, check_stage, lasting_reason

_LOCK = threading.Lock()


def with_a_global(job: int) -> int:
    with _LOCK:
        return job


def holding(thing: object) -> Callable[[Any], str]:
    def work(job: object) -> str:
        return f"{thing}{job}"

    return work


def test_what_a_function_holds_is_named() -> None:
    """T3, F39: a connection, a lock or a file of the driver is refused before anything starts."""
    with sqlite3.connect(":memory:") as database, socket.socket() as line:
        for thing, kind in (
            (database, "sqlite3.Connection"),
            (line, "socket.socket"),
            (_LOCK, "_thread.lock"),
            (sys.stdout, "File"),
        ):
            refused(Team("t", holding(thing)), "its function", "'thing'", kind)
    database.close()


def refused(team: Team, *words: str) -> None:
    others = [one for one in team.next_teams if one is not team]
    with pytest.raises(CannotTravel) as refusal:
        check_stage(Pipeline("p", team, *others).stages()[0])
    for word in ("team 't'", *words):
        assert word in str(refusal.value)


def test_conditions_transforms_and_callables_too() -> None:
    """T3: whatever goes with the function is looked at, in any form."""
    lock, other = threading.Lock(), Team("other", dict)
    team = Team("t", dict)
    team.pipe_to(other, transform=lambda job: (lock, job))
    refused(team, "transform of its connector to 'other'", "'lock'")

    team = Team("t", functools.partial(holding, lock))
    refused(team, "its function", "lock")


def test_functions_of_modules_and_lambdas_travel() -> None:
    """T3: by their names, or by value; what a module holds stays in its module."""
    for work in (with_a_global, lambda job: job + 1, holding("a text")):
        check_stage(Pipeline("p", Team("t", work)).stages()[0])
        assert Parcel.of({0: work}).open()[0](1) in (1, 2, "a text1")


def test_a_module_that_the_worker_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3, F39: on its machine, with what to do; also a function that another version lacks."""
    (tmp_path / "travelling_shop.py").write_text("def ship(job):\n    return job\n")
    monkeypatch.syspath_prepend(tmp_path)
    import travelling_shop  # type: ignore[import-not-found]

    parcel = Parcel.of(travelling_shop.ship)
    del travelling_shop.ship
    with pytest.raises(CannotTravel, match="cannot load what the driver sent"):
        parcel.open()

    del sys.modules["travelling_shop"]
    (tmp_path / "travelling_shop.py").unlink()
    with pytest.raises(CannotTravel, match="has no module 'travelling_shop'; ship it"):
        parcel.open()


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("x\ndovetail.teams.travel.parcel.CannotTravel: no 'shop'\n\tat java", "no 'shop'"),
        ("ModuleNotFoundError: No module named 'dovetail'\n", "has no module 'dovetail'"),
        ("[PYTHON_VERSION_MISMATCH] Python 3.9 there.\n at", "Python 3.9 there. Set PYSPARK"),
        ("ExecutorLostFailure (executor 1 exited)", None),
        ("No module named 'requests'", None),
    ],
)
def test_what_lasts_is_told_from_what_passes(told: str, reason: str | None) -> None:
    """T3: an engine that cannot begin ends with the reason; a lost executor is tried again."""
    found = lasting_reason(told)
    assert (found is None) if reason is None else (found is not None and reason in found)
