"""How long it takes to recover a ledger of a million entries: fence it, find its end, repair it.

Filled through the writer that brokers use, from this process to three storage processes, because a
million entries by Kafka clients are a million requests. The writer then leaves the ledger open with
entries on their way, as a crash would; a new owner with a higher term recovers it. Measured with
the storage nodes as they were, and after kill -9 and start of all three.

What recovery costs is the tail, not the ledger: every entry behind the last confirmed one is read
from a quorum and written back. A tail of 200 is 40 idempotent producers with all 5 of their
requests on the way; ten times as many have a rule of their own, on a smaller ledger.
"""

import asyncio
import random
import time
from collections.abc import Collection, Sequence

from bench.local_cluster import LocalCluster
from bench.run import Run
from bench.table import Line
from dovetail.cli.local_cluster.plan import Planned
from dovetail.coordination import Put
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import DovetailError, Unavailable
from dovetail.log.catalog import partition_key
from dovetail.storage import Ensembles, LedgerId, Quorum, Term, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.placement import Placement
from dovetail.storage.remote import RemoteStorageNode

_ENTRIES = 1_000_000
_BYTES = 100
#: Entries on their way at once while a ledger is filled.
_IN_FLIGHT = 2_000
_TAIL = 200
_TAIL_LONG = 2_000
#: What is required.
_RECOVERY_S_MAX = 2.0
_RECOVERY_LONG_S_MAX = 0.5
#: Ledgers of brokers count up from 1.
_LEDGER = 1_000_000_000
#: No topic has it, so no broker takes its partitions.
_TOPIC_ID = "recovery"


class _Storage:
    """`Nodes` of the storage processes."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._nodes = {
            one.number: RemoteStorageNode("127.0.0.1", one.port, client_id="bench")
            for one in planned
        }

    def node(self, number: int) -> RemoteStorageNode:
        return self._nodes[number]

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        left = [n for n in self._nodes if n not in without and (among is None or n in among)]
        if len(left) < count:
            raise Unavailable(f"{count} more storage nodes are needed and {len(left)} are there")
        return tuple(random.sample(left, count))

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()


def measure(run: Run) -> list[Line]:
    entries, fewer = run.sized(_ENTRIES, quick=50_000), run.sized(100_000, quick=20_000)
    with LocalCluster(run.folder / "recovery", brokers=1) as cluster:
        return [
            _measure(run, cluster, LedgerId(_LEDGER), entries, tail=_TAIL),
            _measure(run, cluster, LedgerId(_LEDGER + 1), entries, tail=_TAIL, restarted=True),
            _measure(run, cluster, LedgerId(_LEDGER + 2), fewer, tail=_TAIL_LONG),
        ]


def _measure(
    run: Run,
    cluster: LocalCluster,
    ledger: LedgerId,
    entries: int,
    *,
    tail: int,
    restarted: bool = False,
) -> Line:
    run.step(f"filling a ledger with {entries:,} entries")
    placement, fill_s = asyncio.run(_fill(cluster.storage(), ledger, entries, tail))
    run.note(f"  filled at {entries / fill_s:,.0f} entries/s")
    assert cluster.plan is not None
    asyncio.run(_name(cluster.plan.etcd_endpoints, placement))
    if restarted:
        run.step("killing and starting the storage nodes")
        for one in cluster.storage():
            cluster.kill(one.name)
        cluster.start()
    run.step("recovering")
    took_s = asyncio.run(_recover(cluster.storage(), placement, entries, tail))
    state = ", storage nodes killed and started before" if restarted else ""
    return Line(
        "h recovery",
        f"of a ledger with {entries:,} entries, {tail:,} on their way{state}",
        took_s,
        "s",
        "limit",
        _RECOVERY_S_MAX if tail == _TAIL else _RECOVERY_LONG_S_MAX,
        ratio_max=1.0,
    )


async def _fill(
    planned: Sequence[Planned], ledger: LedgerId, entries: int, tail: int
) -> tuple[Placement, float]:
    """Fills a ledger; all but the last `tail` entries are confirmed."""
    nodes = _Storage(planned)
    ensembles = Ensembles(nodes)
    placement = ensembles.place(ledger, Quorum(3, 3, 2))
    room, failures = asyncio.Semaphore(_IN_FLIGHT), list[DovetailError]()

    async def change(_: Placement) -> None:
        raise Unavailable("nobody should fail while this ledger is filled")

    def confirm(error: DovetailError | None) -> None:
        room.release()
        if error is not None:
            failures.append(error)

    writer = ensembles.writer(placement, term=Term(1), change=change)
    payload, started = b"x" * _BYTES, time.perf_counter()
    for _ in range(entries - tail):
        await room.acquire()
        if failures:
            raise failures[0]
        writer.append(payload, confirm)
    for _ in range(_IN_FLIGHT):  # All of the room is back when all are confirmed.
        await room.acquire()
    for _ in range(tail):
        writer.append(payload, confirm)
    # These leave and are not waited for: that is how a crash leaves a ledger.
    await asyncio.sleep(0)
    took_s = time.perf_counter() - started
    await nodes.close()
    return placement, took_s


async def _name(endpoints: tuple[str, ...], placement: Placement) -> None:
    """Puts the ledger into a chain, or a storage node that starts would let it go."""
    record = PartitionRecord(
        topic_id=_TOPIC_ID,
        partition=placement.ledger - _LEDGER,
        ledgers=(LedgerInfo(placement, term=1, opened_ms=0),),
    )
    key = partition_key(record.topic_id, record.partition)
    async with await EtcdCoordinator.open(EtcdSettings(endpoints)) as coordinator:
        await coordinator.transact([Put(key, chain.encode(record))])


async def _recover(
    planned: Sequence[Planned], placement: Placement, entries: int, tail: int
) -> float:
    nodes = _Storage(planned)
    started = time.perf_counter()
    _, entry_last = await Ensembles(nodes).recover(placement, Term(2))
    took_s = time.perf_counter() - started
    await nodes.close()
    if not entries - tail <= entry_last + 1 <= entries:
        raise RuntimeError(f"recovered up to entry {entry_last} of {entries}")
    return took_s
