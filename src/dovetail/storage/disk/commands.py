"""The commands to a store, its answers, and what a group of commands cost."""

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError
from dovetail.storage.disk.files import File
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


@dataclass(frozen=True, slots=True)
class TakeCut:
    """Hold all segments as they are now; answered with a `Cut`."""


@dataclass(frozen=True, slots=True)
class CutSegment:
    """A segment file, of which the first `size` bytes belong to the cut."""

    name: str
    file: File
    size: int


@dataclass(frozen=True, slots=True)
class Cut:
    """All segments between two groups. Their files stay open, also if the store drops them."""

    segments: tuple[CutSegment, ...]
    #: Gives the files back; safe to call again, from any thread.
    let_go: Callable[[], None]


@dataclass(frozen=True, slots=True)
class LookForFiles:
    """Look whether all segment files are still in their folder; answered with those that are not.

    What lives in them can be read as long as the process has them open, and is moved.
    """


@dataclass(frozen=True, slots=True)
class FilesGone:
    """Segment files that somebody removed."""

    names: tuple[str, ...]


Applied = Fence | DeleteLedger | LetDamageGo | TakeCut | LookForFiles
Command = Append | Applied
Outcome = None | LedgerState | Cut | FilesGone | DovetailError


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
