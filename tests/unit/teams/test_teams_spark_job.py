"""The job of Spark that an engine runs, and the session that it runs in, without Spark."""

from typing import Any, cast

import pytest

from dovetail.spark import sessions
from dovetail.teams.spark_job import SparkJob


class Failing:
    """Tasks that fail as Spark says it."""

    context: Any

    def __init__(self, text: str) -> None:
        self.context, self._text = self, text

    def setJobGroup(self, *_: object, **__: object) -> None:  # noqa: N802 - Spark's name
        return None

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802 - Spark's name
        return None

    def collect(self) -> None:
        raise RuntimeError(self._text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("z:org.PythonRDD.\n: Java: org.PythonException: Traceback: why", "Traceback: why"),
        ("an executor was lost", "an executor was lost"),
        ("", "RuntimeError('')"),
    ],
)
def test_an_error_of_a_task_begins_with_what_python_raised(text: str, said: str) -> None:
    """T11: a report has room for the reason, not for a page of Java in front of it."""
    job = SparkJob(cast(Any, Failing(text)), pool="p", name="n", count=1)
    job._thread.join()
    assert job.over
    assert job.error == said


def test_a_session_of_teams_does_not_start_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """T15: registering the format starts Spark's SQL, and two processes that look for formats."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    registered: list[object] = []
    spark = object()
    monkeypatch.setattr(sessions, "session_running", lambda: True)
    monkeypatch.setattr(sessions, "register", registered.append)
    monkeypatch.setattr(pyspark_sql.SparkSession.Builder, "getOrCreate", lambda _builder: spark)
    assert sessions.plain_session("teams") is spark
    assert registered == []
    assert sessions.session("tables") is spark
    assert registered == [spark]
