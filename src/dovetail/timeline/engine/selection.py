"""Which broker a client should use; pure, from what the brokers report.

All brokers that serve a timeline read the same store, so its consumers are best concentrated on few
of them, but not all on one:

1. brokers that have consumers of the timeline, as long as they have fewer than the best number, the
   fuller first; then those below the maximum (`Crowd`);
2. brokers without, those with the fewest timelines first, then with the fewest consumers.

A broker that is not healthy comes after all that are, and an overloaded one after those that are
not. Within a group the load decides, in steps of a fifth, so that a fluctuating figure does not
turn the list around. Names break ties: all who ask at the same time get the same answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

#: Consumers of one timeline that a broker serves best together, and the most that it should have,
#: unless the settings say otherwise.
BEST: Final = 4
MOST: Final = 7
#: From this part of a processor on a broker has no room: pushes begin to be late.
LOAD_MAX: Final = 0.8
_LOAD_STEPS: Final = 5


@dataclass(frozen=True, slots=True)
class Load:
    """A broker, as the selection sees it: consumers by timeline."""

    name: str
    healthy: bool
    consumers: Mapping[str, int]
    #: Part of one processor that it needs.
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many consumers of one timeline a broker should have."""

    best: int = BEST
    most: int = MOST


def overloaded(load: float) -> bool:
    """Whether a broker with this load should be given nothing more."""
    return load >= LOAD_MAX


def preference(brokers: Iterable[Load], timeline: str, *, crowd: Crowd = Crowd()) -> list[str]:
    """The names of all brokers, the best one for a client of the timeline first."""

    def rank(load: Load) -> tuple[object, ...]:
        here = load.consumers.get(timeline, 0)
        total = sum(load.consumers.values())
        if 0 < here < crowd.best:
            group = (0, -here)
        elif crowd.best <= here < crowd.most:
            group = (1, here)
        elif here == 0:
            group = (2, len(load.consumers))
        else:
            group = (3, here)
        step = int(load.load * _LOAD_STEPS)
        return (not load.healthy, overloaded(load.load), *group, step, total, load.name)

    return [load.name for load in sorted(brokers, key=rank)]
