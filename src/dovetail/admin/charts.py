"""Charts of the last hour: what a node keeps of itself in memory, in equal steps. Pure.

A node's figures are its own: what it took in and gave out, the groups that it coordinates, the
timelines that it serves. Nobody adds them up; an answer names the node, and others have theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

#: Partitions of one group that a chart shows; more lines cannot be told apart.
PARTITIONS_MAX = 12


class HourOfNode(Struct, frozen=True):
    """The last hour of one node. Values are by step, oldest first; null where nothing is known."""

    node_id: int
    node: str
    #: When the first step begins.
    first_ms: int
    step_ms: int
    figures: dict[str, list[float | None]]


class LagOfPartition(Struct, frozen=True):
    """The lag in one partition over time."""

    topic: str
    partition: int
    lag: list[float | None]


class HourOfGroup(Struct, frozen=True):
    """The lag of a group over the last hour, as the node that coordinates it has seen it."""

    group: str
    #: The coordinator; null while there is none.
    node_id: int | None
    #: Whether that is the node that answers, which alone keeps the lag.
    here: bool
    first_ms: int
    step_ms: int
    lag: list[float | None]
    #: Those with the most lag within the hour, at most twelve.
    partitions: list[LagOfPartition]
    #: How many partitions the group has beside these.
    partitions_more: int


class KeptFigures(Protocol):
    """Figures over an hour, as a node keeps them."""

    def steps(self, *, now_ms: int, step_ms: int) -> tuple[int, dict[str, list[float | None]]]: ...


class KeptLag(Protocol):
    """A group's lag over an hour, as its coordinator keeps it."""

    @property
    def total(self) -> list[float | None]: ...

    @property
    def partitions(self) -> Mapping[tuple[str, int], list[float | None]]: ...


def hour_of_node(
    figures: KeptFigures, *, node_id: int, node: str, now_ms: int, step_ms: int
) -> HourOfNode:
    """The last hour in steps of this length."""
    first_ms, steps = figures.steps(now_ms=now_ms, step_ms=step_ms)
    rounded = {name: [_short(value) for value in values] for name, values in steps.items()}
    return HourOfNode(node_id, node, first_ms, step_ms, rounded)


def hour_of_group(
    group: str,
    kept: KeptLag | None,
    *,
    coordinator: int | None,
    here: bool,
    now_ms: int,
    step_ms: int,
) -> HourOfGroup:
    """The lag of a group; `kept` is None where nothing is kept of it."""
    partitions = {} if kept is None else kept.partitions
    chosen = sorted(partitions, key=lambda place: (-_highest(partitions[place]), place))
    shown = sorted(chosen[:PARTITIONS_MAX])
    total = [] if kept is None else kept.total
    count = max([len(total), *(len(partitions[place]) for place in shown)])
    return HourOfGroup(
        group=group,
        node_id=coordinator,
        here=here,
        first_ms=now_ms - count * step_ms,
        step_ms=step_ms,
        lag=total or [None] * count,
        partitions=[LagOfPartition(*place, partitions[place]) for place in shown],
        partitions_more=len(chosen) - len(shown),
    )


def _highest(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None), default=-1.0)


def _short(value: float | None) -> float | None:
    """Four digits are more than a chart shows; whole numbers stay as they are."""
    if value is None or value == int(value):
        return value if value is None else int(value)
    return float(f"{value:.4g}")
