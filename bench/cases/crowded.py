"""One message at a time on a crowded machine, beside a synced Apache Kafka in the same crowd.

Thirty processes keep the processors busy all the time, so whoever wakes up waits for its turn. What
counts is how often a request has to: the number of its wake-ups and hand-overs between threads.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import client
from bench.cases.kafka_one import OURS, SYNCED, one_at_a_time, started
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line

_BUSY = 30
#: What is required.
_PART_OF_KAFKA = 0.5


def measure(run: Run) -> list[Line]:
    best: dict[str, float] = {}
    missing = ""
    messages = run.sized(300, quick=20)
    for at in range(run.rounds):
        for name in (OURS, SYNCED):
            run.step(f"{name}: one at a time among {_BUSY} busy processes")
            try:
                folder = run.folder / f"crowded-{name[:5]}-{at}"
                with started(name, folder) as (server, _), _crowd():
                    rate = 1000 * messages / sum(one_at_a_time(server.bootstrap, messages))
            except PeerMissing as error:
                missing = str(error)
                continue
            best[name] = max(best.get(name, 0.0), rate)
            run.note(f"  {name}, round {at + 1}: {rate:,.1f} messages/s")
    return [
        Line(
            "s crowded machine",
            f"produce one at a time, {_BUSY} busy processes beside",
            best.get(OURS),
            "messages/s",
            SYNCED,
            best.get(SYNCED),
            ratio_min=_PART_OF_KAFKA,
            note=missing,
        )
    ]


@contextmanager
def _crowd() -> Iterator[None]:
    """Processes that are busy inside."""
    context = multiprocessing.get_context("spawn")
    crowd = [context.Process(target=_be_busy, daemon=True) for _ in range(_BUSY)]
    for one in crowd:
        one.start()
    try:
        yield
    finally:
        for one in crowd:
            one.kill()
        for one in crowd:
            one.join()


def _be_busy() -> None:
    deadline = time.monotonic() + 10 * client.STALL_S_MAX
    while time.monotonic() < deadline:
        sum(range(10_000))
