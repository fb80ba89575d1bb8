"""The quorum machines, step by step; the random runs are in tests/sim/test_cluster_sim.py."""

import random
from collections.abc import Callable

import pytest
from tests.faulty_disk import FaultyDisk
from tests.sim.cluster import fenced_read

from dovetail.errors import Fenced, InvalidInput, Unavailable
from dovetail.storage.disk.commands import Append, Fence
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.identifiers import EntryId, LedgerId, Term
from dovetail.storage.quorum.arithmetic import Quorum, check_quorum, write_set
from dovetail.storage.quorum.recovery import (
    AskAhead,
    AskEntry,
    AskFence,
    Done,
    QuorumRecovery,
    Stuck,
    WriteBack,
)
from dovetail.storage.quorum.writer import Confirm, Fail, QuorumWriter, Replace, Send

THREE = Quorum(3, 3, 2)


@pytest.mark.parametrize(
    ("quorum", "read", "rule"),
    [
        (Quorum(3, 3, 0), None, "at least 1"),
        (Quorum(3, 2, 3), None, "ack quorum 3 > write quorum 2"),
        (Quorum(2, 3, 2), None, "write quorum 3 > ensemble 2"),
        (Quorum(3, 3, 2), 1, "must be more than write quorum 3"),
    ],
)
def test_bad_combinations_are_refused_by_their_rule(
    quorum: Quorum, read: int | None, rule: str
) -> None:
    """L2: the message names the rule."""
    with pytest.raises(InvalidInput, match=rule):
        check_quorum(quorum, read=read)
    check_quorum(Quorum(3, 3, 2), read=2)


def test_entries_are_striped() -> None:
    """L2: entry n lies on Qw nodes from place n on."""
    assert write_set(Quorum(4, 2, 2), [10, 11, 12, 13], 0) == (10, 11)
    assert write_set(Quorum(4, 2, 2), [10, 11, 12, 13], 3) == (13, 10)


def test_entries_are_confirmed_in_order() -> None:
    """L4: the second waits for the first."""
    writer = QuorumWriter(THREE, [1, 2, 3])
    assert [e.node for e in writer.append(b"a") if isinstance(e, Send)] == [1, 2, 3]
    writer.append(b"b")
    assert writer.on_stored(1, 1) == []
    assert writer.on_stored(2, 1) == []
    assert writer.on_stored(3, 0) == []
    assert writer.on_stored(3, 0) == []
    assert writer.on_stored(1, 0) == [Confirm(1)]
    assert writer.confirmed == 1


def test_a_failed_node_is_replaced_from_the_first_unconfirmed_entry() -> None:
    """L10: answers of the old node count no more; nothing is confirmed meanwhile."""
    writer = QuorumWriter(THREE, [1, 2, 3])
    for _ in range(3):
        writer.append(b"x")
    writer.on_stored(1, 0)
    assert writer.on_stored(2, 0) == [Confirm(0)]
    writer.on_stored(3, 1)
    assert writer.on_failed(3) == [Replace(frozenset({3}), 1)]
    assert writer.on_stored(1, 1) == []
    effects = writer.on_replaced([1, 2, 4])
    assert [(e.node, e.entry) for e in effects if isinstance(e, Send)] == [(4, 1), (4, 2)]
    assert writer.on_stored(3, 1) == []
    assert writer.on_stored(4, 1) == [Confirm(1)]


def test_without_a_spare_the_writer_goes_on_with_two_of_three() -> None:
    """L10: and takes the third in again when it is back; with one of three it ends."""
    writer = QuorumWriter(THREE, [1, 2, 3])
    writer.append(b"a")
    writer.on_failed(3)
    writer.on_not_replaced(Unavailable("none"))
    effects = writer.append(b"b")
    assert [e.node for e in effects if isinstance(e, Send)] == [2, 1]
    assert [e.node for e in writer.on_back(3) if isinstance(e, Send)] == [3, 3]
    writer.on_failed(3)
    writer.on_not_replaced(Unavailable("none"))
    writer.on_failed(2)
    assert isinstance(writer.on_not_replaced(Unavailable("none"))[0], Fail)


def test_who_is_said_to_be_back_counts_when_it_has_stored_something() -> None:
    """L10: our line may be cut, whatever the coordination service says of the nodes."""
    writer = QuorumWriter(THREE, [1, 2, 3])
    writer.append(b"a")
    writer.on_failed(1)
    writer.on_not_replaced(Unavailable("none"))
    assert writer.on_back(1)
    writer.on_failed(2)
    assert isinstance(writer.on_not_replaced(Unavailable("none"))[0], Fail)
    healed = QuorumWriter(THREE, [1, 2, 3])
    healed.append(b"a")
    healed.on_failed(1)
    healed.on_not_replaced(Unavailable("none"))
    healed.on_back(1)
    healed.on_stored(1, 0)
    healed.on_failed(2)
    assert healed.on_not_replaced(Unavailable("none")) == []
    assert healed.on_stored(3, 0) == [Confirm(0)]


def test_a_fenced_writer_confirms_nothing_more() -> None:
    """L9: what was sent may or may not be stored."""
    writer = QuorumWriter(THREE, [1, 2, 3])
    writer.append(b"a")
    writer.on_stored(1, 0)
    assert isinstance(writer.on_refused(Fenced("7"))[0], Fail)
    assert writer.on_stored(2, 0) == []
    assert isinstance(writer.append(b"b")[0], Fail)


def test_recovery_writes_back_what_it_finds() -> None:
    """L9: an entry on one node may have been acknowledged; it is on Qa nodes when it is over."""
    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    assert recovery.start() == [AskFence(1), AskFence(2), AskFence(3)]
    assert recovery.on_fenced(1, 4) == []
    assert recovery.on_fenced(2, 6) == [AskEntry(2, 7), AskEntry(3, 7), AskEntry(1, 7)]
    effects = recovery.on_entry(3, 7, b"found")
    assert effects == [WriteBack(node, 7, b"found", 6) for node in (2, 3, 1)]
    recovery.on_stored(3, 7)
    assert recovery.on_stored(1, 7) == [AskEntry(3, 8), AskEntry(1, 8), AskEntry(2, 8)]
    assert recovery.on_entry(3, 8, None) == []
    assert recovery.on_entry(1, 8, None) == [Done(7)]


def test_recovery_of_many_entries_takes_few_steps() -> None:
    """F69: what one node has is read and written back together; the last word is a fencing "no"."""
    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    recovery.start()
    recovery.on_fenced(1, -1, 1)
    asked = recovery.on_fenced(2, -1, 1999)
    assert asked == [AskAhead(2, 0, 1999), AskEntry(1, 0), AskEntry(3, 0)]
    payloads = [b"%d" % entry for entry in range(2000)]
    written = recovery.on_ahead(2, 0, payloads)
    assert len(written) == 3 * 2000
    assert {(w.entry, bytes(w.payload)) for w in written if isinstance(w, WriteBack)} == set(
        enumerate(payloads)
    )

    for node in (1, 2):
        for entry in range(1999):
            assert recovery.on_stored(node, entry) == []
    assert recovery.on_stored(1, 1999) == []
    assert recovery.on_stored(2, 1999) == [AskEntry(n, 2000) for n in (3, 1, 2)]
    assert recovery.on_entry(1, 2000, None) == []
    assert recovery.on_entry(3, 2000, None) == [Done(1999)]


def test_recovery_does_not_wait_for_a_long_read() -> None:
    """L9: the others are asked for the next entry meanwhile; what comes late is still of use."""
    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    recovery.start()
    recovery.on_fenced(1, -1, 5)
    recovery.on_fenced(2, -1, 5)
    assert recovery.on_entry(3, 0, b"a") == [WriteBack(n, 0, b"a", -1) for n in (1, 2, 3)]
    recovery.on_stored(3, 0)
    # The long read is on its way still, so every node is asked for the next one.
    assert recovery.on_stored(1, 0) == [AskEntry(n, 1) for n in (2, 3, 1)]
    found = recovery.on_ahead(2, 0, [b"a", b"b", b"c"])
    assert [(w.entry, w.payload) for w in found if isinstance(w, WriteBack)] == [
        (entry, payload) for entry, payload in ((1, b"b"), (2, b"c")) for _ in range(3)
    ]


def test_a_long_read_that_fails_proves_nothing() -> None:
    """L9: the node is asked again, by a read that fences."""
    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    recovery.start()
    recovery.on_fenced(1, -1, -1)
    recovery.on_fenced(2, -1, 5)
    assert recovery.on_entry(1, 0, None) == []
    assert recovery.on_ahead(2, 0, []) == [AskEntry(2, 0)]
    assert recovery.on_entry(2, 0, None) == [Done(-1)]


def test_nodes_that_fail_under_many_entries_are_replaced_for_all_of_them() -> None:
    """L9: from the first of them on, and each is written to the new node."""
    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    recovery.start()
    recovery.on_fenced(1, -1, 2)
    recovery.on_fenced(2, -1, 2)
    recovery.on_ahead(2, 0, [b"a", b"b", b"c"])
    for entry in range(3):
        recovery.on_stored(2, entry)
    recovery.on_stored(1, 1)
    recovery.on_failed(1)
    assert recovery.on_failed(3) == [Replace(frozenset({1, 3}), 0)]
    written = recovery.on_replaced([4, 2, 3])
    assert [(w.node, w.entry) for w in written if isinstance(w, WriteBack)] == [
        (4, entry) for entry in range(3)
    ]
    assert recovery.on_stored(4, 0) == []
    assert recovery.on_stored(4, 2) == []
    assert AskEntry(2, 3) in recovery.on_stored(4, 1)


def test_recovery_proves_nothing_by_silence() -> None:
    """L9: nodes that do not answer are not nodes that say no."""
    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    recovery.start()
    recovery.on_fenced(1, -1)
    recovery.on_fenced(2, -1)
    assert recovery.on_entry(1, 0, None) == []
    assert recovery.on_failed(2) == []
    assert isinstance(recovery.on_failed(3)[0], Stuck)


class _Nodes:
    """Three real stores."""

    def __init__(self) -> None:
        settings = StoreSettings(disk_free_bytes_min=0, reserve_bytes=4096)
        self.stores = {
            node: LedgerStore(FaultyDisk(random.Random(node)), settings, random.Random(node))
            for node in (1, 2, 3)
        }

    def append(self, node: int, entry: int, *, term: int) -> object:
        command = Append(LedgerId(1), EntryId(entry), Term(term), EntryId(entry - 1), b"x")
        return self.stores[node].commit([command])[0]

    def fence(self, node: int, term: int) -> int:
        state = self.stores[node].commit([Fence(LedgerId(1), Term(term))])[0]
        return state.confirmed  # type: ignore[union-attr]


def unfenced_read(store: LedgerStore, ledger: LedgerId, term: Term, entry: int) -> bytes | None:
    """The defect: the node says "no" and stays open for the old writer."""
    return None if not store.ledgers() else fenced_read(store, ledger, term, entry)


@pytest.mark.parametrize(("read", "safe"), [(fenced_read, True), (unfenced_read, False)])
def test_recovery_read_also_fences(
    read: Callable[[LedgerStore, LedgerId, Term, int], bytes | None], safe: bool
) -> None:
    """A node that answered "no such entry" to recovery never stores that entry later.

    BookKeeper's defect, found by model checking: nodes 1 and 2 are fenced, node 3 is slow. Entry 0
    is on node 1 only, whose answer is late. Nodes 2 and 3 say no, so the ledger is closed without
    it; then the old writer's append reaches node 3. With the defect that makes two, and the old
    writer acknowledges an entry that is not in the ledger.
    """
    nodes = _Nodes()
    writer = QuorumWriter(THREE, [1, 2, 3])
    writer.append(b"x")
    assert nodes.append(1, 0, term=1) is None
    writer.on_stored(1, 0)

    recovery = QuorumRecovery(THREE, [1, 2, 3], fragment_first=0)
    recovery.start()
    recovery.on_fenced(1, nodes.fence(1, 2))
    recovery.on_fenced(2, nodes.fence(2, 2))
    assert recovery.on_entry(2, 0, read(nodes.stores[2], LedgerId(1), Term(2), 0)) == []
    done = recovery.on_entry(3, 0, read(nodes.stores[3], LedgerId(1), Term(2), 0))
    assert done == [Done(-1)]

    late = nodes.append(3, 0, term=1)
    confirmed = writer.on_stored(3, 0) if late is None else writer.on_refused(Fenced("late"))
    assert isinstance(late, Fenced) == safe
    assert (confirmed == [Confirm(0)]) == (not safe)


def test_an_ensemble_change_does_not_begin_below_its_fragment() -> None:
    """BookKeeper's other defect: a second failure in a row starts where the first one did."""
    writer = QuorumWriter(THREE, [1, 2, 3])
    for _ in range(5):
        writer.append(b"x")
    for entry in range(3):
        writer.on_stored(1, entry)
        writer.on_stored(2, entry)
    first = writer.on_failed(3)
    assert first == [Replace(frozenset({3}), 3)]
    writer.on_replaced([1, 2, 4])
    second = writer.on_failed(4)
    assert second == [Replace(frozenset({4}), 3)]
    writer.on_replaced([1, 2, 5])
    writer.on_stored(5, 3)
    assert writer.on_stored(1, 3) == [Confirm(3)]
    assert writer.on_failed(2) == [Replace(frozenset({2}), 4)]
