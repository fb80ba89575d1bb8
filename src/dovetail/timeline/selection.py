"""Which broker a client should be at: pure, from what the carriers say of themselves.

All carriers that serve a timeline read the same store, so its consumers are best together on few of
them, but not all on one:

1. carriers that have consumers of the timeline, as long as they have fewer than `BEST`, the fuller
   first; then those below `MOST`;
2. carriers without, those with the fewest timelines first, then with the fewest consumers.

A carrier that is not healthy comes after all that are. Names break ties, so everybody who asks at
the same time is told the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

#: Consumers of one timeline that a carrier serves best together, and the most that it should have.
BEST: Final = 4
MOST: Final = 7


@dataclass(frozen=True, slots=True)
class Load:
    """A carrier, as the selection sees it: consumers by timeline."""

    name: str
    healthy: bool
    consumers: Mapping[str, int]


def preference(
    carriers: Iterable[Load], timeline: str, *, best: int = BEST, most: int = MOST
) -> list[str]:
    """The names of all carriers, the best one for a client of the timeline first."""

    def rank(load: Load) -> tuple[object, ...]:
        here = load.consumers.get(timeline, 0)
        total = sum(load.consumers.values())
        if 0 < here < best:
            group = (0, -here)
        elif best <= here < most:
            group = (1, here)
        elif here == 0:
            group = (2, len(load.consumers))
        else:
            group = (3, here)
        return (not load.healthy, *group, total, load.name)

    return [load.name for load in sorted(carriers, key=rank)]
