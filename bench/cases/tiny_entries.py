"""Start of a storage node after kill -9 with a million tiny entries.

The newest segment has no index on disk, so a start reads all of it. However small entries are, a
segment holds a quarter of a million of them at most; the newest one here is full.
"""

import random
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from bench.run import Run
from bench.table import Line
from dovetail.storage import EntryId, LedgerId, LedgerStore, RealDisk, StoreSettings, Term
from dovetail.storage.disk.commands import Append

_ENTRIES = 1_000_000
_LEDGERS = 100
_GROUP = 1_000
_PAYLOAD = b"tiny entry"
#: What is required.
_START_S_MAX = 2.0


def measure(run: Run) -> list[Line]:
    entries, folder = run.sized(_ENTRIES, quick=20_000), run.folder / "tiny"
    folder.mkdir()
    run.step(f"writing {entries:,} entries")
    _in_process(_write, folder, entries)
    found: list[Took] = []
    for at in range(run.rounds):
        run.step("opening")
        found.append(_in_process(_open, folder, entries))
        run.note(
            f"  round {at + 1}: {found[-1].seconds:.2f} s, of the processor {found[-1].cpu_s:.2f} s"
        )
    what = f"start of storage, {entries:,} entries of {len(_PAYLOAD)} bytes, newest segment full"
    seconds = min(took.seconds for took in found)
    cpu_s = min(took.cpu_s for took in found)
    return [
        Line("s tiny entries", what, seconds, "s", "limit", _START_S_MAX, ratio_max=1.0),
        Line("s tiny entries", "its processor time", cpu_s, "s"),
    ]


class Took(NamedTuple):
    """By the clock, and of the processor."""

    seconds: float
    cpu_s: float


def _in_process(work: Callable[[Path, int], Took], folder: Path, entries: int) -> Took:
    """In a process of its own, which ends without closing anything, as after kill -9."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (folder, entries))


def _store(folder: Path) -> LedgerStore:
    return LedgerStore(RealDisk(folder), StoreSettings(), random.Random(1))


def _write(folder: Path, entries: int) -> Took:
    store, started = _store(folder), time.perf_counter()
    for first in range(0, entries, _GROUP):
        outcomes = store.commit(
            [
                Append(
                    LedgerId(1 + at % _LEDGERS),
                    EntryId(at // _LEDGERS),
                    Term(1),
                    EntryId(at // _LEDGERS - 1),
                    _PAYLOAD,
                )
                for at in range(first, first + _GROUP)
            ]
        )
        if any(outcomes):
            raise RuntimeError(f"not stored: {outcomes[0]}")
    return Took(time.perf_counter() - started, time.process_time())


def _open(folder: Path, entries: int) -> Took:
    started, cpu_before_s = time.perf_counter(), time.process_time()
    store = _store(folder)
    took = Took(time.perf_counter() - started, time.process_time() - cpu_before_s)
    last = EntryId(entries // _LEDGERS - 1)
    if store.held(LedgerId(1), first=EntryId(0), last=last).spans[-1].last != last:
        raise RuntimeError("entries are missing")
    return took
