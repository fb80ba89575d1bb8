"""The Spark job of an engine: its tasks serve partitions until they are ended."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dovetail.background import start_thread

if TYPE_CHECKING:
    from pyspark import RDD

#: How long tasks have to end when they are told to; Spark kills what has not.
_STOP_S_MAX = 15.0


class SparkJob:
    """A job of Spark: all tasks of the pipeline, on a thread that waits for their end."""

    def __init__(self, tasks: "RDD[Any]", *, pool: str, name: str, count: int) -> None:
        self._context, self._tasks = tasks.context, tasks
        self._pool, self._name = pool, name
        self.count = count
        self.started_s = time.monotonic()
        self.error: str | None = None
        self._thread = start_thread(self._run, name="teams/tasks", of=name)

    def _run(self) -> None:
        self._context.setJobGroup(self._name, self._name, interruptOnCancel=True)
        # Under Spark's fair scheduler, pipelines and queries get equal parts of its slots.
        self._context.setLocalProperty("spark.scheduler.pool", self._pool)
        try:
            self._tasks.collect()
            self.error = "its tasks have ended"
        except Exception as error:  # noqa: BLE001 - Spark raises what ended the job
            self.error = _said(error)

    @property
    def over(self) -> bool:
        """Whether they have ended."""
        return not self._thread.is_alive()

    def running(self) -> int:
        """How many of them Spark runs now; the others wait for slots."""
        tracker = self._context.statusTracker()
        infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._name)]
        stages = [tracker.getStageInfo(one) for info in infos if info for one in info.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def stop(self) -> None:
        """Ends them; what they have not finished is done by others."""
        deadline = time.monotonic() + _STOP_S_MAX
        # A job that has not begun yet is not known to Spark, so ask again.
        while not self.over and time.monotonic() < deadline:
            # If Spark has ended, its thread hears of it too.
            with suppress(Exception):
                self._context.cancelJobGroup(self._name)
            self._thread.join(0.2)


def _said(error: Exception) -> str:
    """What a task raised, without what Java says before it."""
    text = str(error) or repr(error)
    return text.partition("PythonException: ")[2] or text
