"""What a function can learn about the job it runs, if it asks: its second parameter. Pure.

    def charge(order: Order, context: JobContext) -> Receipt:
        return bank.charge(order, idempotency_key=context.job_id)

A function asks by a second parameter that is named `context` or annotated with `JobContext`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.teams.envelope import JobId


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job, as its function sees it."""

    job_id: JobId
    #: 1 for the first time; attempts before a restart of the team's tasks are not counted.
    attempt: int
    #: The headers of the job's record that are not Dovetail's own.
    headers: Mapping[str, bytes]
    #: Seconds since the epoch at which the attempt is given up (`timeout`).
    deadline_s: float


def wants_context(work: Callable[..., Any]) -> bool:
    """Whether a function takes the context of its job."""
    try:
        parameters = list(inspect.signature(work).parameters.values())[1:2]
    except (TypeError, ValueError):
        return False
    return any(
        one.name == "context" or one.annotation in (JobContext, "JobContext") for one in parameters
    )
