"""What a function can learn about the job it runs, through its second parameter; pure.

    def charge(order: Order, context: JobContext) -> Receipt:
        return bank.charge(order, idempotency_key=context.job_id)

A function asks for it by a second parameter that is named `context` or annotated with `JobContext`.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import InvalidInput
from dovetail.teams.envelope import JobId

#: What a job says of itself is a line in a table.
PROGRESS_CHARACTERS_MAX = 80


def _say_nothing(_part: float, _text: str) -> None:
    return None


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
    #: What the team's `setup` has returned in this process.
    resource: Any = None
    _is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)
    _say: Callable[[float, str], None] = field(default=_say_nothing, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled: its outcome is decided, and nobody waits for this one.

        A function that looks has five seconds to tidy up and return; then its process is killed.
        """
        return self._is_cancelled()

    def progress(self, part: float, text: str = "") -> None:
        """Tells how far the job is, from 0 to 1, for the pipeline's report. Costs next to nothing.

        Raises `InvalidInput` for what is not a part.
        """
        if isinstance(part, bool) or not isinstance(part, int | float) or math.isnan(part):
            raise InvalidInput(f"progress({part!r}) must be a number from 0 to 1")
        if not 0 <= part <= 1:
            raise InvalidInput(f"progress({part!r}) must be from 0 to 1")
        if not isinstance(text, str):
            raise InvalidInput(f"progress({part!r}, {text!r}): what is said must be text")
        kept = text[:PROGRESS_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
        self._say(float(part), kept[:PROGRESS_CHARACTERS_MAX])


def wants_context(work: Callable[..., Any]) -> bool:
    """Whether a function takes the context of its job."""
    try:
        parameters = list(inspect.signature(work).parameters.values())[1:2]
    except (TypeError, ValueError):
        return False
    return any(
        one.name == "context" or one.annotation in (JobContext, "JobContext") for one in parameters
    )
