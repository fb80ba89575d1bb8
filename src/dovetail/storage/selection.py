"""Named strategies that choose a node for something new (L12).

A strategy sorts candidates, best first. It is a pure function of the candidates and of `turn`, a
number that differs from choice to choice: nodes that see the same candidates and the same turn get
the same order without talking to each other.

    least-loaded    the smallest load first; `turn` decides among equals
    round-robin     by number, starting one further with each turn
    random          any order
    module:callable the user's own, with the signature of `Selection`
"""

import importlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dovetail.errors import InvalidSetting, Unavailable


class Candidate(NamedTuple):
    """A node that can be chosen. Loads are compared with each other only."""

    node_id: int
    load: int


#: The candidates' numbers, best first; the caller takes as many as it needs.
Selection = Callable[[Sequence[Candidate], int], Sequence[int]]


def least_loaded(candidates: Sequence[Candidate], turn: int) -> list[int]:
    """Fewest first."""
    order = {node: place for place, node in enumerate(any_order(candidates, turn))}
    return [c.node_id for c in sorted(candidates, key=lambda c: (c.load, order[c.node_id]))]


def round_robin(candidates: Sequence[Candidate], turn: int) -> list[int]:
    """By number, and the next one first."""
    numbers = sorted(candidate.node_id for candidate in candidates)
    first = turn % len(numbers) if numbers else 0
    return numbers[first:] + numbers[:first]


def any_order(candidates: Sequence[Candidate], turn: int) -> list[int]:
    """Any order, the same for the same turn."""
    numbers = sorted(candidate.node_id for candidate in candidates)
    random.Random(turn).shuffle(numbers)  # noqa: S311 - not a secret, and must be repeatable
    return numbers


def spread(
    order: Sequence[int], count: int, *, racks: Mapping[int, str], beside: Sequence[int]
) -> tuple[int, ...]:
    """The best `count` of an order over as many racks as there are (L16): each time the best of a
    rack that has the fewest. `beside` are the nodes that stay, whose racks have something."""
    used = Counter(racks.get(node, "") for node in beside)
    left, found = list(order), []
    for _ in range(count):
        best = min(left, key=lambda node: used[racks.get(node, "")])
        left.remove(best)
        used[racks.get(best, "")] += 1
        found.append(best)
    return tuple(found)


_NAMED: dict[str, Selection] = {
    "least-loaded": least_loaded,
    "round-robin": round_robin,
    "random": any_order,
}


def selection_named(name: str) -> Selection:
    """The strategy of this name. Raises `InvalidSetting` if there is none."""
    if name in _NAMED:
        return _NAMED[name]
    module, attribute = name.split(":", 1) if ":" in name else ("", "")
    if not module or not attribute:
        known = ", ".join(_NAMED)
        raise InvalidSetting(
            f"selection {name!r} is unknown; write {known}, or your own as module:callable"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidSetting(f"cannot load selection {name!r}: {error}") from error
    if not callable(found):
        raise InvalidSetting(f"selection {name!r} is not callable")
    return _checked(name, found)


def _checked(name: str, users: Selection) -> Selection:
    """A user's strategy whose answer is checked: it may only sort the candidates."""

    def select(candidates: Sequence[Candidate], turn: int) -> Sequence[int]:
        try:
            answer = [int(node) for node in users(candidates, turn)]
        except Exception as error:
            raise Unavailable(f"selection {name!r} failed: {error!r}") from error
        if sorted(answer) != sorted(candidate.node_id for candidate in candidates):
            raise Unavailable(f"selection {name!r} returned {answer[:10]}, not each candidate once")
        return answer

    return select
