"""A storage node under a disk that loses, tears and fails, seeded.

A run is a few lives of one store on one `FaultyDisk`. In each life random commands are committed;
a life ends by a power cut, at any point between two system calls. Checked after each start:
everything that was acknowledged is there unchanged, nothing is there that was never sent, fences
and deletions hold, and a torn tail is never taken for damage.
"""

import random

import pytest
from tests.faulty_disk import FaultyDisk
from tests.sim.seeds import run_seeds

from dovetail.errors import (
    Damaged,
    DiskFull,
    EntryConflict,
    EntryUnknown,
    Fenced,
    LedgerUnknown,
    StorageOut,
    Uncertain,
)
from dovetail.storage.disk.commands import Append, DeleteLedger, Fence
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.identifiers import EntryId, LedgerId, LedgerState, Term

SETTINGS = StoreSettings(segment_bytes=6_000, disk_free_bytes_min=0, reserve_bytes=2_000)


class PowerCut(Exception):
    """The lights go out in the middle of a system call."""


class Life:
    """What the outside knows: what it sent, and what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(self.rng)
        self.sent: dict[tuple[int, int], set[bytes]] = {}
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.fences: dict[int, int] = {}
        self.fences_tried: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.deletes_tried: set[int] = set()
        self.next_entry: dict[int, int] = {}
        self.next_ledger = 1
        self.store = self.open()

    def open(self) -> LedgerStore:
        store = LedgerStore(self.disk, SETTINGS, self.rng)
        assert store.report.damaged == [], f"a torn tail was taken for damage: {store.report}"
        return store

    def commands(self) -> list[Append | Fence | DeleteLedger]:
        made: list[Append | Fence | DeleteLedger] = []
        for _ in range(self.rng.randint(1, 6)):
            ledger = self.rng.randint(max(1, self.next_ledger - 4), self.next_ledger)
            self.next_ledger = max(self.next_ledger, ledger + (self.rng.random() < 0.05))
            choice = self.rng.random()
            if choice < 0.05:
                term = self.rng.randint(1, 5)
                made.append(Fence(LedgerId(ledger), Term(term)))
            elif choice < 0.08:
                made.append(DeleteLedger(LedgerId(ledger)))
            else:
                made.append(self.append(ledger))
        return made

    def append(self, ledger: int) -> Append:
        known = [key for key in self.sent if key[0] == ledger]
        if known and self.rng.random() < 0.1:
            entry = self.rng.choice(known)[1]
            payload = self.rng.choice(sorted(self.sent[ledger, entry]))
        else:
            entry = self.next_entry.get(ledger, 0)
            self.next_entry[ledger] = entry + 1
            payload = self.rng.randbytes(self.rng.choice([1, 40, 600, 2500]))
        self.sent.setdefault((ledger, entry), set()).add(payload)
        return Append(
            LedgerId(ledger), EntryId(entry), Term(self.rng.randint(1, 5)), EntryId(-1), payload
        )

    def step(self) -> None:
        if self.rng.random() < 0.2:
            self.store.compact_step()
        if self.rng.random() < 0.2:
            self.store.mark()
        commands = self.commands()
        for command in commands:
            if isinstance(command, Fence):
                tried = self.fences_tried.get(command.ledger, 0)
                self.fences_tried[command.ledger] = max(tried, command.term)
            elif isinstance(command, DeleteLedger):
                self.deletes_tried.add(command.ledger)
        for command, outcome in zip(commands, self.store.commit(commands), strict=True):
            self.note(command, outcome)

    def note(self, command: Append | Fence | DeleteLedger, outcome: object) -> None:
        if isinstance(outcome, (StorageOut, Uncertain, DiskFull)):
            return
        ledger = command.ledger
        if isinstance(command, Append):
            key = (command.ledger, command.entry)
            if outcome is None:
                assert command.term >= self.fences.get(ledger, 0), "a fenced term was let in"
                assert ledger not in self.deleted, "a deleted ledger took an entry"
                self.acknowledged[key] = bytes(command.payload)
            else:
                assert isinstance(outcome, (Fenced, LedgerUnknown, EntryConflict)), outcome
        elif isinstance(command, Fence):
            if isinstance(outcome, LedgerState):
                self.fences[ledger] = max(self.fences.get(ledger, 0), command.term)
        else:
            assert outcome is None
            self.deleted.add(ledger)

    def check(self) -> None:
        for (ledger, entry), payload in self.acknowledged.items():
            if ledger in self.deletes_tried:
                continue
            found = self.store.read(
                LedgerId(ledger), EntryId(entry), last=EntryId(entry), bytes_max=1
            )
            assert bytes(found[0].payload) == payload, f"entry {entry} of {ledger} changed"
        for (ledger, entry), payloads in self.sent.items():
            if (ledger, entry) in self.acknowledged and ledger not in self.deleted:
                continue
            try:
                found = self.store.read(
                    LedgerId(ledger), EntryId(entry), last=EntryId(entry), bytes_max=1
                )
            except (EntryUnknown, LedgerUnknown):
                continue
            assert ledger not in self.deleted, f"deleted ledger {ledger} came back"
            assert bytes(found[0].payload) in payloads, f"entry {entry} of {ledger} was never sent"
        for ledger, term in self.fences.items():
            if ledger not in self.deletes_tried:
                assert self.store.state(LedgerId(ledger)).fenced >= term, "a fence was forgotten"


def run(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.rng.randint(2, 4)):
        cut_after = life.rng.randint(1, 60)
        fault = life.rng.random()
        if fault < 0.15:
            life.disk.syncs_until_failure = life.rng.randint(0, 20)
        elif fault < 0.3:
            life.disk.writes_until_full = life.rng.randint(0, 20)
        life.disk.calls_until_cut = cut_after
        try:
            for _ in range(40):
                life.step()
        except PowerCut:
            pass
        life.disk.calls_until_cut = None
        life.disk.crash()
        life.store = life.open()
        life.check()


@pytest.fixture(autouse=True)
def _cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faulty_disk.FaultyDisk.power_cut", PowerCut)


def test_nothing_acknowledged_is_lost_whatever_the_disk_does() -> None:
    """L5, L6: acknowledged entries, fences and deletions survive power cuts at any system call."""
    run_seeds(run, least=500)


def test_damage_is_not_cut_away() -> None:
    """L6: a byte that flips in an acknowledged group is reported, and its neighbours are kept."""
    rng = random.Random(7)
    for seed in range(100):
        disk = FaultyDisk(random.Random(seed))
        store = LedgerStore(disk, StoreSettings(reserve_bytes=4096, disk_free_bytes_min=0), rng)
        for entry in range(10):
            payload = bytes([entry]) * 300
            store.commit([Append(LedgerId(1), EntryId(entry), Term(1), EntryId(-1), payload)])
        disk.flip("0000000001.segment", 200 + rng.randrange(2_800))
        store = LedgerStore(disk, StoreSettings(reserve_bytes=4096, disk_free_bytes_min=0), rng)
        assert len(store.report.damaged) == 1
        assert store.report.torn_bytes == 0
        intact = 0
        for entry in range(10):
            try:
                found = store.read(LedgerId(1), EntryId(entry), last=EntryId(entry), bytes_max=1)
            except (EntryUnknown, Damaged):
                continue
            assert bytes(found[0].payload) == bytes([entry]) * 300
            intact += 1
        assert intact == 9
