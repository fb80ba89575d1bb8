"""Dead letters grouped by why they died. Pure.

What differs from letter to letter is left out of a reason: numbers, and what stands in quotes. So
`KeyError: 'order-17'` and `KeyError: 'order-18'` are one group, shown as `KeyError: '…'`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from dovetail.admin.dead.letter import DeadLetter

#: Groups that are told one by one; with more of them the rule does not fit the reasons.
GROUPS_MAX = 50
#: A reason is read as a headline.
_CHARACTERS_MAX = 300

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"(?<![A-Za-z])(?:0x)?[0-9][0-9a-f]*(?:[-:.][0-9a-f]+)*(?![A-Za-z])")


class Reason(Struct, frozen=True):
    """Letters that died for one reason; times are null where no letter has one."""

    reason: str
    letters: int
    first_ms: int | None
    last_ms: int | None
    #: The youngest of them, and its reason as it stands.
    example_id: str
    example: str


def headline(reason: str) -> str:
    """A reason without what differs from letter to letter."""
    short = reason[:_CHARACTERS_MAX].strip()
    return _NUMBER.sub("N", _QUOTED.sub("'…'", short)) or "no reason given"


def by_reason(letters: Iterable[DeadLetter]) -> list[Reason]:
    """The reasons, the most frequent first."""
    groups: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        groups[headline(letter.reason)].append(letter)
    order = sorted(groups, key=lambda reason: (-len(groups[reason]), reason))
    return [_group(reason, groups[reason]) for reason in order[:GROUPS_MAX]]


def _group(reason: str, letters: list[DeadLetter]) -> Reason:
    times = [letter.died_ms for letter in letters if letter.died_ms is not None]
    youngest = max(letters, key=lambda letter: letter.died_ms or 0)
    return Reason(
        reason=reason,
        letters=len(letters),
        first_ms=min(times, default=None),
        last_ms=max(times, default=None),
        example_id=youngest.id,
        example=youngest.reason[:_CHARACTERS_MAX],
    )
