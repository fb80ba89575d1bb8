"""Quorum arithmetic: which nodes store an entry, and what a set of answers proves.

A ledger lies on an *ensemble* of E nodes. Entry n is written to its *write set*, the Qw nodes from
place n mod E on; it is acknowledged when Qa of them hold it.

    E >= Qw >= Qa >= 1

What answers prove, for one entry:
- "stored" by Qa nodes proves that it may have been acknowledged, and that every later quorum will
  find it;
- "not here, and fenced" by Qw - Qa + 1 nodes proves that it never was and never will be
  acknowledged: the other Qa - 1 are too few;
- anything less proves nothing. Silence is not "not here".

For a whole ledger, a fence holds when no write set has Qa nodes left that are not fenced.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dovetail.errors import InvalidInput


class Quorum(NamedTuple):
    """Sizes of a ledger: nodes in the ensemble, copies of an entry, copies that acknowledge."""

    ensemble: int
    write: int
    ack: int

    @property
    def noes_needed(self) -> int:
        """So many fenced nodes without an entry prove that it was never acknowledged."""
        return self.write - self.ack + 1


#: One node, one copy.
SINGLE = Quorum(1, 1, 1)
_THE_ONLY = (0,)


def check_quorum(quorum: Quorum, *, read: int | None = None) -> None:
    """Raises `InvalidInput` that names the rule which does not hold."""
    if quorum.ack < 1:
        raise InvalidInput(f"ack quorum {quorum.ack}: at least 1 node must hold an entry")
    if quorum.ack > quorum.write:
        raise InvalidInput(f"ack quorum {quorum.ack} > write quorum {quorum.write}")
    if quorum.write > quorum.ensemble:
        raise InvalidInput(f"write quorum {quorum.write} > ensemble {quorum.ensemble}")
    if read is not None and read + quorum.ack <= quorum.write:
        raise InvalidInput(
            f"read quorum {read} + ack quorum {quorum.ack} must be more than write quorum "
            f"{quorum.write}, or a read can miss what was acknowledged"
        )
    if read is not None and read > quorum.noes_needed:
        raise InvalidInput(
            f"read quorum {read}: a recovery trusts that an entry is missing when write quorum - "
            f"ack quorum + 1 = {quorum.noes_needed} nodes say so, never more; leave it out"
        )


def places_of(quorum: Quorum, entry: int) -> tuple[int, ...]:
    """The places in the ensemble that hold an entry."""
    if quorum.ensemble == 1:  # Asked twice for every entry, and most nodes are alone.
        return _THE_ONLY
    return tuple((entry + step) % quorum.ensemble for step in range(quorum.write))


def write_set(quorum: Quorum, nodes: Sequence[int], entry: int) -> tuple[int, ...]:
    """The nodes that hold an entry."""
    return tuple(nodes[place] for place in places_of(quorum, entry))


def fence_holds(quorum: Quorum, fenced_places: Collection[int]) -> bool:
    """Whether no write set has Qa nodes left that are not fenced."""
    for start in range(quorum.ensemble):
        unfenced = [p for p in places_of(quorum, start) if p not in fenced_places]
        if len(unfenced) >= quorum.ack:
            return False
    return True
