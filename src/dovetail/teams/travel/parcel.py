"""What the driver sends to its tasks: functions and all that belongs to them, as bytes.

Promise: what cannot travel is reported at once, with its reason, and not retried. The driver
refuses what cannot be pickled, and names what the function holds. A task that cannot load its
parcel raises `CannotTravel`, which says what the Python there lacks; the engine recognises that in
Spark's error (`lasting_reason`), whose own message is a page of Java.
"""

import inspect
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from dovetail.errors import InvalidInput
from dovetail.foreign import described
from dovetail.teams.connectors import Connector
from dovetail.teams.graph import Stage

_SHIP = "ship it: dovetail pipeline package (docs/howto/ship-to-a-cluster.md)"
#: How Spark reports what will be the same at the next try, and what that means here.
_LASTING = (
    (re.compile(r"CannotTravel: ([^\n]+)"), "{0}"),
    (
        re.compile(r"No module named '(dovetail[^']*)'"),
        f"the Python of Spark's executors has no module {{0!r}}; {_SHIP}",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\] ([^\n]+)"),
        "{0} Set PYSPARK_PYTHON to a Python of the driver's version on the executors",
    ),
)


class CannotTravel(InvalidInput):
    """A function that Spark's workers cannot get, or cannot load."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A value for the tasks of a Spark job, pickled apart from Spark's own."""

    data: bytes

    @classmethod
    def of(cls, value: Any) -> "Parcel":
        """Raises `CannotTravel`."""
        try:
            return cls(_pickled(value))
        except Exception as error:
            raise CannotTravel(described(error)) from error

    def open(self) -> Any:
        """The value, where it arrived. Raises `CannotTravel`."""
        from pyspark import cloudpickle

        try:
            # Spark brings it from the driver, as it brings the function that calls this.
            return cloudpickle.loads(self.data)
        except Exception as error:
            here = f"Python {platform.python_version()} on {platform.node()}"
            if isinstance(error, ModuleNotFoundError):
                reason = f"{here} has no module {error.name!r}; {_SHIP}"
            else:
                reason = f"{here} cannot load what the driver sent: {described(error)}"
            raise CannotTravel(reason.replace("\n", " ")) from error


def check_stage(stage: Stage) -> None:
    """Raises `CannotTravel` for a function of a team that cannot be sent, and says why."""
    for role, function in _functions(stage):
        try:
            _pickled(function)
        except Exception as error:
            raise CannotTravel(
                f"team {stage.team!r}: its {role} cannot be sent to Spark's workers: "
                f"{_culprit(function) or described(error)}"
            ) from error


def lasting_reason(error: str) -> str | None:
    """Why tasks that failed with this error of Spark will fail again; None if they may not."""
    for pattern, text in _LASTING:
        if found := pattern.search(error):
            return text.format(*found.groups())
    return None


def _functions(stage: Stage) -> Iterator[tuple[str, Callable[..., Any]]]:
    owners: list[tuple[str, Stage | Connector]] = [("", stage)]
    owners += [(f" of its connector to {one.target!r}", one) for one in stage.connectors]
    for where, owner in owners:
        for field in fields(owner):
            value = getattr(owner, field.name)
            if callable(value):
                yield ("function" if field.name == "work" else field.name) + where, value


def _culprit(function: Callable[..., Any]) -> str | None:
    """Which of the values that a function uses cannot be pickled."""
    try:
        used = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return None
    for name, value in {**used.globals, **used.nonlocals}.items():
        try:
            _pickled(value)
        except Exception as error:  # noqa: BLE001 - see `Parcel.of`
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            return (
                f"it uses {name!r}, a {kind}, which belongs to this process "
                f"({described(error)}). Make it inside the function, or in the team's setup"
            )
    return None


def _pickled(value: Any) -> bytes:
    from pyspark import cloudpickle

    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data
