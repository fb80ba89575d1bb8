"""Snapshots of a chain: where an attempt begins to read, committed to its own group; pure.

    (input topic, partition)   position p                  metadata  `term=… own=… note=…`
    (output topic, number)     offset o of the view        metadata  `n=… for=… begin=… at=…`

Every entry is true by itself: from offset `o` on, all rows of jobs at or above `for` are found in
that output partition, and the first batch of the chain there has the number `n`. So an entry is
usable if its `for` is not above the position p stored beside it; else its partition is read from
`begin`, where the chain began, with number 0. A snapshot therefore needs be neither atomic nor
complete, and one that arrives late, from an attempt that slept, only makes the next one read more.

`at` is when the entry was last known to be true: after a day, records behind it may have been
removed by retention, and an attempt that finds a hole must not continue by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail.kafka.client.client import Partition

#: What a group stores for a partition: a position, and a text.
Stored = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the view of an output partition begins."""

    offset: int
    #: The number of the chain's first batch from there on.
    sequence: int
    #: It serves whoever begins at this position of the input or above.
    position: int
    #: Where the chain began in this partition; there its number was 0.
    begin: int
    at_ms: int

    @classmethod
    def of(cls, stored: Stored) -> "Entry":
        """From what the group holds; words that are not known are skipped."""
        offset, text = stored
        words = _words(text)
        return cls(offset, words["n"], words["for"], words["begin"], words["at"])

    @property
    def text(self) -> str:
        """What stands beside the offset."""
        return f"n={self.sequence} for={self.position} begin={self.begin} at={self.at_ms}"

    def usable_at(self, position: int) -> "Entry":
        """Itself, or the beginning of the chain if it serves later positions only."""
        if self.position <= position:
            return self
        return Entry(self.begin, 0, 0, self.begin, self.at_ms)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a chain at a moment."""

    input: Partition
    position: int
    entries: Mapping[Partition, Entry]
    #: The term of the master whose attempt committed it; 0: there is no election.
    term: int = 0
    #: Whether that term is of the team's own election; terms of two elections do not compare.
    own: bool = False

    @classmethod
    def of(cls, input_: Partition, stored: Mapping[Partition, Stored]) -> "Snapshot | None":
        """From what the group holds; None if the chain was never begun."""
        if input_ not in stored:
            return None
        position, text = stored[input_]
        entries = {place: Entry.of(one) for place, one in stored.items() if place != input_}
        words = _words(text)
        return cls(input_, position, entries, words.get("term", 0), own="own" in words)

    def led_by(self, term: int, *, own: bool) -> "Snapshot":
        """With the term of whoever goes on, unless a higher one of the same election is known."""
        known = self.term if own == self.own else 0
        return replace(self, term=max(known, term), own=own)

    def positions(self) -> dict[Partition, int]:
        """What to commit."""
        return {self.input: self.position} | {
            place: entry.offset for place, entry in self.entries.items()
        }

    def texts(self, note: str = "") -> dict[Partition, str]:
        """What to commit beside it; `note` is for the driver, and has no spaces."""
        about = f"term={self.term}{' own=1' if self.own else ''}"
        about += f" note={note}" if note else ""
        return {self.input: about} | {place: entry.text for place, entry in self.entries.items()}


def created(
    input_: Partition,
    position: int,
    ends: Mapping[Partition, int],
    *,
    at_ms: int,
    term: int,
    own: bool = False,
) -> Snapshot:
    """The first snapshot: the chain begins at the ends of its outputs, as they were *before* the
    group was found empty. Whoever else finds it empty has looked at the ends earlier still than
    the first row of this chain was written."""
    entries = {place: Entry(end, 0, 0, end, at_ms) for place, end in ends.items()}
    return Snapshot(input_, position, entries, term, own)


def note_in(text: str) -> str:
    """The note in what stands beside the position of an input."""
    return text.partition(" note=")[2].partition(" ")[0]


def _words(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text.split())
    return {name: int(value) for name, _, value in pairs if value.isdigit()}
