"""Member, term, position, algorithm, as types.

A `Position` gives the next offset for every lane of a stream (a partition of a topic); an election
that is not about a stream has none.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NewType

#: Number of an election; the shared log accepts each at most once, and never a lower one.
Term = NewType("Term", int)
#: A member's name is the endpoint at which the others reach it.
MemberName = NewType("MemberName", str)
#: One life of a member's process; a restarted member has another.
Incarnation = NewType("Incarnation", str)
#: The next offset of every lane.
Position = Mapping[int, int]

NO_TERM = Term(0)


class Algorithm(Enum):
    """How a leader is found."""

    MAJORITY = "MAJORITY"
    BULLY = "BULLY"
    COORDINATOR = "COORDINATOR"
