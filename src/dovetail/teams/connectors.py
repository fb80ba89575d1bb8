"""Connectors: where the results of a team go next.

    a >> b, a.pipe_to(b)                  each result becomes a job of b, under the same id
    a.spray_to(b)                         each item of a list result: ids parent/0, parent/1, ...
    a.route_to(condition, b, c)           to b where condition(result) holds, else to c
    b.gather_to(c, within="1h")           the ends of all items of a job that was sprayed to b, in
                                          order, when the last has arrived or the time is over

Each takes a `transform` of the result (for a spray, of each item; the condition of a route sees the
untransformed result) and `after`, a delay. `as_` gives the jobs their own ids, `id/as_`, so that
one job can become two jobs of the same team. `cycle` names an edge that may close a cycle; its ids
count the rounds, `id#1`, `id#2`, or the second round would look like a repetition of the first.

Conditions and transforms are the user's code. They run where the function runs, under the same
timeout and with the same protection.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

import msgspec

from dovetail.errors import InvalidInput
from dovetail.given_functions import check_ran
from dovetail.teams.envelope import JobId

Transform = Callable[[Any], Any]
Condition = Callable[[Any], Any]

#: Items of one result; more is a sign of a mistake, and would be one huge write.
SPRAY_ITEMS_MAX = 100_000

#: A number of rounds; an id from outside may end in `#` and other digits, or a thousand of them.
_ROUNDS = re.compile(r"[0-9]{1,18}")


class ConnectorOptions(TypedDict, total=False):
    """What every connector takes; see above."""

    transform: Transform | None
    after: str | int
    as_: str | None
    cycle: str | None


class ConnectorKind(StrEnum):
    """How results travel."""

    PIPE = "pipe"
    SPRAY = "spray"
    ROUTE = "route"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class Connector:
    """One connector of a team; targets are names of teams."""

    kind: ConnectorKind
    target: str
    #: For a route: where a result goes if the condition does not hold.
    otherwise: str | None = None
    condition: Condition | None = None
    transform: Transform | None = None
    after_ms: int = 0
    id_suffix: str | None = None
    cycle: str | None = None
    #: For a gathering: how long it waits, from the spray on.
    within_ms: int = 0

    @property
    def targets(self) -> tuple[str, ...]:
        """All teams that it can lead to."""
        return (self.target,) if self.otherwise is None else (self.target, self.otherwise)

    def forward(self, job_id: JobId, result: Any) -> "list[Forward]":
        """What follows from a result. Raises what the user's code raises, and `InvalidInput`."""
        if self.kind is ConnectorKind.GATHER:
            # It takes place behind all partitions of the team (`tasks/gathering`).
            return []
        target = self.target
        if self.kind is ConnectorKind.ROUTE and not self._holds(result):
            target = self.otherwise or target

        base = self.next_id(job_id)
        if self.kind is not ConnectorKind.SPRAY:
            return [Forward(target, base, self._transformed(result), self.after_ms)]
        items = _items(result)
        return [
            Forward(
                target,
                JobId(f"{base}/{number}"),
                self._transformed(item),
                self.after_ms,
                f"{number}/{len(items)}",
            )
            for number, item in enumerate(items)
        ]

    def _holds(self, result: Any) -> bool:
        found = self.condition is not None and self.condition(result)
        check_ran(found, "the condition of route_to")
        return bool(found)

    def _transformed(self, value: Any) -> Any:
        return value if self.transform is None else self.transform(value)

    def next_id(self, job_id: JobId) -> JobId:
        """The id behind this connector; those of items have their numbers behind it."""
        derived = job_id
        if self.cycle is not None:
            origin, mark, rounds = job_id.rpartition("#")
            known = bool(mark) and bool(_ROUNDS.fullmatch(rounds))
            derived = JobId(f"{origin}#{int(rounds) + 1}" if known else f"{job_id}#1")
        return derived if self.id_suffix is None else JobId(f"{derived}/{self.id_suffix}")


class Forward(msgspec.Struct, frozen=True, gc=False):
    """A job for another team, its payload not encoded yet."""

    target: str
    id: JobId
    payload: Any
    #: How long it waits before it reaches the team.
    after_ms: int = 0
    #: Of a spray: `number/count`.
    item: str = ""


def opening_of(count: int) -> str:
    """What tells a gathering of a spray, in place of an item: so many will come."""
    return f"{count}/{count}"


def is_opening(item: str) -> bool:
    """Whether it stands for the spray and not for an item."""
    if not item:
        return False
    number, _, count = item.partition("/")
    return number == count


def _items(result: Any) -> list[Any]:
    if isinstance(result, str | bytes | dict) or not isinstance(result, Iterable):
        raise InvalidInput(
            f"spray_to splits a list, but this result is of type {type(result).__name__}; return "
            "a list or use pipe_to"
        )
    items = list(result)
    if len(items) > SPRAY_ITEMS_MAX:
        raise InvalidInput(
            f"the result has {len(items)} items; the limit of a spray is {SPRAY_ITEMS_MAX}. Spray "
            "in two steps"
        )
    return items
