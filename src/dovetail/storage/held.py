"""Spans of entry ids: what a storage node holds of a ledger, and what it should hold.

A span is a first and a last entry id, both inclusive. Lists of spans are sorted, and there is a gap
between any two. The entries for one place of an ensemble form a pattern: Qw consecutive ones of
every E.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dovetail.storage.identifiers import EntryId, LedgerId
from dovetail.storage.quorum.arithmetic import Quorum

#: Spans in one answer. A ledger that is striped over many nodes has one span for every few
#: entries: a million of them take some 80 answers of 80 KiB, and not one of 10 MiB.
HELD_SPANS_MAX = 4096


class Span(NamedTuple):
    """Entries from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds of the entries that were asked about; `next` if the answer was cut short.

    Entries from `next` on are not in it; ask again from there.
    """

    spans: tuple[Span, ...]
    next: EntryId | None = None


def joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Sorted spans, with those that touch or overlap made one."""
    current: Span | None = None
    for span in spans:
        if current is None:
            current = span
        elif span.first <= current.last + 1:
            current = Span(current.first, max(current.last, span.last))
        else:
            yield current
            current = span
    if current is not None:
        yield current


def without(wanted: Iterable[Span], held: Iterable[Span]) -> list[Span]:
    """What of `wanted` is not in `held`; both sorted and joined."""
    missing: list[Span] = []
    rest = iter(held)
    there = next(rest, None)
    for span in wanted:
        first = span.first
        while there is not None and there.last < first:
            there = next(rest, None)
        while there is not None and there.first <= span.last:
            if there.first > first:
                missing.append(Span(first, there.first - 1))
            first = there.last + 1
            if first > span.last:
                break
            there = next(rest, None)
        if first <= span.last:
            missing.append(Span(first, span.last))
    return missing


def of_place(quorum: Quorum, place: int, first: int, last: int) -> Iterator[Span]:
    """The entries between `first` and `last` whose write set has this place of the ensemble."""
    if first > last:
        return
    if quorum.write == quorum.ensemble:
        yield Span(first, last)
        return
    # An entry lies from place `entry % E` on, so the last one of each turn starts at this place.
    end = first + (place - first) % quorum.ensemble
    while end - quorum.write + 1 <= last:
        span = Span(max(first, end - quorum.write + 1), min(last, end))
        if span.first <= span.last:
            yield span
        end += quorum.ensemble


class Holder(Protocol):
    """A node that can report what it holds."""

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        """As `StorageNode.held`."""
        ...


async def held_in(holder: Holder, ledger: LedgerId, span: Span) -> list[Span]:
    """All that is held of a span of entries, page by page."""
    found: list[Span] = []
    first: EntryId | None = EntryId(span.first)
    while first is not None:
        page = await holder.held(ledger, first=first, last=EntryId(span.last))
        found += page.spans
        first = page.next
    return list(joined(found))
