"""What a store is asked for, what it answers, and what a group of commands cost."""

from dataclasses import dataclass

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError
from dovetail.storage.disk.frame import Record
from dovetail.storage.identifiers import EntryId, LedgerId, LedgerState, Term


@dataclass(frozen=True, slots=True)
class Append:
    """Store an entry."""

    ledger: LedgerId
    entry: EntryId
    term: Term
    confirmed: EntryId
    payload: Buffer


@dataclass(frozen=True, slots=True)
class Fence:
    """Refuse lower terms from now on; answered with the ledger's state."""

    ledger: LedgerId
    term: Term


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Forget the ledger."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class LetDamageGo:
    """Everything that should be here can be read: damaged segments are not needed any more.

    What cannot be read of `settled` ledgers goes with them: all that counts of those is here, or
    has its place elsewhere.
    """

    settled: frozenset[LedgerId] = frozenset()


Command = Append | Fence | DeleteLedger | LetDamageGo
Outcome = None | LedgerState | DovetailError


@dataclass(slots=True)
class ScrubReport:
    """What was read to find damage, and how often some was found."""

    bytes_read: int = 0
    damaged: int = 0
    passes: int = 0


@dataclass(slots=True)
class GroupReport:
    """What a group cost, for metrics."""

    entries: int = 0
    payload_bytes: int = 0
    write_s: float = 0.0
    sync_s: float = 0.0


class Group:
    """Commands that share one sync, while they are decided."""

    def __init__(self) -> None:
        self.records: list[tuple[Record, Buffer]] = []
        self.entries: dict[tuple[int, int], Buffer] = {}
        self.fences: dict[int, int] = {}
        self.deleted: set[int] = set()
