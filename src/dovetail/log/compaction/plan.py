"""What of a partition may be compacted, whether it is due, and in which pieces; pure.

Ledgers are immutable, so compaction replaces closed ones by new ones. The compacted part precedes
the rest:

    log start        first dirty           end                     last stable     high watermark
        |   clean         |      dirty      |   too young, or open       |               |

`end` is never in an open ledger, never behind the last stable offset, and before any ledger with
records younger than `min.compaction.lag.ms`. As in Kafka, compaction is due when the dirty part is
more than `min.cleanable.dirty.ratio` of clean and dirty together, or when a dirty record is older
than `max.compaction.lag.ms`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.storage.chain import LedgerInfo


@dataclass(frozen=True, slots=True)
class Rules:
    """What a topic's settings say of its compaction."""

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int
    tombstones_ms: int
    ledger_bytes_max: int


class Survey(NamedTuple):
    """What can be compacted: the offsets from `first_dirty` to `end`."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    due: bool

    @property
    def dirty_ratio(self) -> float:
        """The part of what may be compacted that is dirty."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def survey(ledgers: Iterable[LedgerInfo], rules: Rules, *, last_stable: int, now_ms: int) -> Survey:
    """What may be compacted of closed ledgers, the oldest first."""
    first_dirty = end = 0
    clean_bytes = dirty_bytes = 0
    clean, overdue = True, False
    for info in ledgers:
        if clean and info.is_compacted:
            first_dirty = end = info.offset_end
            clean_bytes += info.payload_bytes
            continue
        if clean:
            clean, first_dirty = False, max(info.first_offset, info.compacted_to)
            end = first_dirty

        youngest = info.timestamp_max if info.timestamp_max >= 0 else info.opened_ms
        too_young = rules.lag_ms_min > 0 and youngest > now_ms - rules.lag_ms_min
        if info.offset_end > last_stable or too_young:
            break
        end = info.offset_end
        dirty_bytes += info.payload_bytes
        overdue = overdue or now_ms - info.opened_ms > rules.lag_ms_max

    found = Survey(first_dirty, end, clean_bytes, dirty_bytes, overdue, due=False)
    due = end > first_dirty and (overdue or found.dirty_ratio > rules.dirty_ratio_min)
    return found._replace(due=due)


def groups(
    ledgers: Sequence[LedgerInfo], *, end: int, bytes_max: int
) -> Iterator[tuple[LedgerInfo, ...]]:
    """Neighbours that become one ledger each, the oldest first; all that begin below `end`.

    What a group has now is the most that its ledger can have, but for times that get longer.
    """
    group: list[LedgerInfo] = []
    size = 0
    for info in ledgers:
        if info.first_offset >= end:
            break
        if group and size + info.payload_bytes > bytes_max:
            yield tuple(group)
            group, size = [], 0
        group.append(info)
        size += info.payload_bytes
    if group:
        yield tuple(group)
