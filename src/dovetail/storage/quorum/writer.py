"""The quorum writer; pure: events in, effects out.

Promises:
- An entry is confirmed when Qa nodes of its write set hold it and all entries before it are
  confirmed.
- After a failure that it cannot repair, nothing more is confirmed (L4).

Events: `append`, `on_stored`, `on_refused`, `on_failed`, `on_replaced`, `on_not_replaced`,
`on_back`. Effects: `Send` an entry to a node, `Confirm` entries, ask for `Replace`ment of nodes,
`Fail` for good.

Ensemble change. A failed node is replaced from the first unconfirmed entry on, by a compare-and-set
of the ledger's metadata that the caller makes. Meanwhile nothing is confirmed, so the first
unconfirmed entry cannot move, and the new fragment begins exactly there. Then the unconfirmed
entries are sent to the new nodes, and answers of the old ones no longer count.

Without a spare node the writer continues with the nodes it has, as long as Qa answer; entries that
then lie on fewer than Qw nodes are copied later, in the background. A node reported as back gets
entries again, but counts as answering only when it has stored one: the report comes from the
coordination service, and our own connection to the node may be broken. Otherwise a writer that
reaches no node would never fail: each node would be back before the next one is given up.

    open ──► changing (ensemble) ──► open
      └────────────┴──► failed

Not here: choosing nodes, the compare-and-set, time. A fenced answer means that another owner is at
work: what was sent may or may not be stored.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError
from dovetail.storage.quorum.arithmetic import Quorum, places_of

# Tuples, the two of every entry: a frozen dataclass takes three times as long to make.


class Send(NamedTuple):
    """Effect: append the entry on this node, with the writer's `confirmed`."""

    node: int
    entry: int
    payload: Buffer
    confirmed: int


class Confirm(NamedTuple):
    """Effect: all entries up to this one are confirmed."""

    entry: int


@dataclass(frozen=True, slots=True)
class Replace:
    """Effect: these nodes failed; find others from `first_entry` on, or say that there are none."""

    nodes: frozenset[int]
    first_entry: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Effect: nothing more is confirmed; what is pending may or may not be stored."""

    error: DovetailError


Effect = Send | Confirm | Replace | Fail


@dataclass(slots=True)
class _Pending:
    """An entry that is not confirmed, and the places whose nodes hold it."""

    entry: int
    payload: Buffer
    held: set[int] = field(default_factory=set)


class QuorumWriter:
    """One ledger's writer. `nodes` are the ensemble, by place."""

    def __init__(self, quorum: Quorum, nodes: Sequence[int]) -> None:
        if len(nodes) != quorum.ensemble or len(set(nodes)) != len(nodes):
            raise AssertionError(f"an ensemble of {quorum.ensemble} cannot be {list(nodes)}")
        self.quorum = quorum
        self.nodes = list(nodes)
        self.entry_next = 0
        self.confirmed = -1
        self.failure: DovetailError | None = None
        #: Nodes that failed and have no replacement; nothing is sent to them.
        self.down: set[int] = set()
        #: Nodes that were down and are said to be back; they have stored nothing since.
        self._trying: set[int] = set()
        self._pending: deque[_Pending] = deque()
        self._failed: set[int] = set()
        self._changing = False

    @property
    def pending(self) -> int:
        """Entries that are not confirmed."""
        return len(self._pending)

    def append(self, payload: Buffer) -> list[Effect]:
        """The next entry; its id is `entry_next` before the call."""
        if self.failure is not None:
            return [Fail(self.failure)]
        item = _Pending(self.entry_next, payload)
        self.entry_next += 1
        self._pending.append(item)
        return self._sends(item, places_of(self.quorum, item.entry))

    def on_stored(self, node: int, entry: int) -> list[Effect]:
        """The node holds the entry."""
        self._trying.discard(node)
        item = self._find(entry)
        if self.failure is not None or item is None or node not in self.nodes:
            return []
        place = self.nodes.index(node)
        if place not in places_of(self.quorum, entry):
            return []
        item.held.add(place)
        return self._confirm()

    def on_refused(self, error: DovetailError) -> list[Effect]:
        """A node is fenced, or holds another entry: the ledger has another owner."""
        return self._fail(error)

    def on_failed(self, node: int) -> list[Effect]:
        """The node does not answer, or cannot store."""
        if self.failure is not None or node not in self.nodes or node in self.down:
            return []
        self._failed.add(node)
        return self._change()

    def on_replaced(self, nodes: Sequence[int]) -> list[Effect]:
        """The metadata has the new ensemble; what is not confirmed goes to the new nodes too."""
        if not self._changing:
            raise AssertionError("no change of the ensemble is under way")
        self._changing = False
        changed = {place for place, node in enumerate(nodes) if node != self.nodes[place]}
        gone = {self.nodes[place] for place in changed}
        self.nodes = list(nodes)
        self._failed -= gone
        self.down -= gone
        self._trying -= gone

        effects: list[Effect] = []
        for item in self._pending:
            item.held -= changed
            places = [p for p in places_of(self.quorum, item.entry) if p in changed]
            effects += self._sends(item, places)
        return effects + self._confirm() + self._change()

    def on_not_replaced(self, error: DovetailError) -> list[Effect]:
        """There are no other nodes: continue with the remaining ones, if they are enough."""
        if not self._changing:
            raise AssertionError("no change of the ensemble is under way")
        self._changing = False
        self.down |= self._failed
        self._trying -= self._failed
        self._failed.clear()

        silent = self.down | self._trying
        alive = [place for place, node in enumerate(self.nodes) if node not in silent]
        for start in range(self.quorum.ensemble):
            left = [place for place in places_of(self.quorum, start) if place in alive]
            if len(left) < self.quorum.ack:
                return self._fail(error)
        return self._confirm()

    def on_back(self, node: int) -> list[Effect]:
        """A node that was down answers again: it gets what is not confirmed, and what comes."""
        if node not in self.down:
            return []
        self.down.discard(node)
        self._trying.add(node)
        place = self.nodes.index(node)
        effects: list[Effect] = []
        for item in self._pending:
            if place in places_of(self.quorum, item.entry) and place not in item.held:
                effects += self._sends(item, [place])
        return effects

    def _sends(self, item: _Pending, places: Sequence[int]) -> list[Effect]:
        return [
            Send(self.nodes[place], item.entry, item.payload, self.confirmed)
            for place in places
            if self.nodes[place] not in self.down
        ]

    def _confirm(self) -> list[Effect]:
        if self._changing or self.failure is not None:
            return []
        before = self.confirmed
        while self._pending and len(self._pending[0].held) >= self.quorum.ack:
            self.confirmed = self._pending.popleft().entry
        return [Confirm(self.confirmed)] if self.confirmed != before else []

    def _change(self) -> list[Effect]:
        if not self._failed or self._changing or self.failure is not None:
            return []
        self._changing = True
        return [Replace(frozenset(self._failed), self.confirmed + 1)]

    def _fail(self, error: DovetailError) -> list[Effect]:
        if self.failure is not None:
            return []
        self.failure = error
        return [Fail(error)]

    def _find(self, entry: int) -> _Pending | None:
        """The pending entry; they are in order and without gaps."""
        if not self._pending:
            return None
        at = entry - self._pending[0].entry
        return self._pending[at] if 0 <= at < len(self._pending) else None
