"""Which task of which micro-batch a process of Spark works on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task; a second run of the same task is equal to it."""

    query: str
    batch: int
    task: int


def attempt_of_task() -> Attempt | None:
    """The task that this process runs; None outside of a stream."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return None
    query = task.getLocalProperty("sql.streaming.queryId")
    batch = task.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        return None
    return Attempt(query, int(batch), task.partitionId())
