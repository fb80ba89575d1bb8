"""Bytes a second of 1 KiB messages, against a plain loop of 1 MiB write and sync.

Measured in two states of the machine's memory: *new*, where every page of the system's file cache
is one that was not in use lately, as it is for a plain loop that is just run; and *reused*, where
it was in use a moment ago (`disk.reuse_memory` tells why this matters). Our node and the plain loop
are always compared in the same state. The rule is held to *new*. *Reused* is shown without one:
there the plain loop has the disk's full speed and a core of its own, while client and node together
have two cores and need 2.1 to 2.8 s of processor time a gigabyte, most of it the client's.
"""

from bench import client, disk
from bench.node import Node
from bench.run import Run
from bench.table import Line

_BYTES = 1024
_PART_OF_DISK = 0.5
_MEGA = 1e6
_PROCESSES = (1, 2)


def measure(run: Run) -> list[Line]:
    return [line for reused in (False, True) for line in _measure(run, reused=reused)]


def _measure(run: Run, *, reused: bool) -> list[Line]:
    messages = run.sized(1_000_000, quick=200_000)
    total = messages * _BYTES
    state = "reused" if reused else "new"
    raw, ours = 0.0, dict.fromkeys(_PROCESSES, 0.0)

    def prepare() -> None:
        if reused:
            # Half as much again: requests on their way need memory too.
            disk.reuse_memory(run.folder, total_bytes=total * 3 // 2)

    for at in range(run.rounds):
        run.step(f"the disk alone, {state} memory: 1 MiB write and sync")
        prepare()
        raw = max(raw, disk.write_and_sync_rate(run.folder, total_bytes=total) / _MEGA)
        with Node(run.folder / f"bandwidth-{state}-{at}") as node:
            for processes in ours:
                run.step(f"1 KiB messages, {state} memory, producer processes: {processes}")
                topic = client.create_topic(node.bootstrap, "wide", partitions=processes)
                prepare()
                rate = _rate(node, topic, processes, messages)
                ours[processes] = max(ours[processes], rate)
        run.note(f"  {state} memory so far: disk {raw:.0f} MB/s, ours {max(ours.values()):.0f}")
    producer = ", ".join(f"{name}={value}" for name, value in client.THROUGHPUT.items())
    note = f"produce_batch by 1000; acks=all, {producer}"
    best = max(ours, key=lambda processes: ours[processes])
    return [
        Line(
            "c bandwidth",
            f"1 KiB messages, {processes} producer{'s' if processes > 1 else ''}, {state} memory",
            rate,
            "MB/s",
            f"1 MiB write + fdatasync, new file, {state} memory",
            raw,
            ratio_min=_PART_OF_DISK if processes == best and not reused else None,
            note=note,
        )
        for processes, rate in ours.items()
    ]


def _rate(node: Node, topic: str, processes: int, messages: int) -> float:
    span = client.produce_from(
        processes,
        node.bootstrap,
        topic,
        messages=messages // processes,
        message_bytes=_BYTES,
    )
    return messages * _BYTES / span.seconds / _MEGA
