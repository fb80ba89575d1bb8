"""Bytes a second of 1 KiB messages, against a plain loop of 1 MiB write and sync."""

from bench import client, disk
from bench.node import Node
from bench.run import Run
from bench.table import Line

_BYTES = 1024
_PART_OF_DISK = 0.5
_MEGA = 1e6


def measure(run: Run) -> list[Line]:
    messages = run.sized(1_000_000, quick=200_000)
    raw, ours = 0.0, {1: 0.0, 2: 0.0}
    for at in range(run.rounds):
        run.step("the disk alone: 1 MiB write and sync")
        total = run.sized(1024, quick=256) * 1024 * 1024
        raw = max(raw, disk.write_and_sync_rate(run.folder, total_bytes=total) / _MEGA)
        with Node(run.folder / f"bandwidth-{at}") as node:
            for processes in ours:
                run.step(f"1 KiB messages from {processes} producer process(es)")
                topic = client.create_topic(node.bootstrap, "wide", partitions=processes)
                span = client.produce_from(
                    processes,
                    node.bootstrap,
                    topic,
                    messages=messages // processes,
                    message_bytes=_BYTES,
                )
                rate = messages * _BYTES / span.seconds / _MEGA
                ours[processes] = max(ours[processes], rate)
    producer = ", ".join(f"{name}={value}" for name, value in client.THROUGHPUT.items())
    note = f"produce_batch by 1000; acks=all, {producer}"
    best = max(ours, key=lambda processes: ours[processes])
    return [
        Line(
            "c bandwidth",
            f"1 KiB messages, {processes} producer process{'es' if processes > 1 else ''}",
            rate,
            "MB/s",
            "1 MiB write + fdatasync, new file",
            raw,
            ratio_min=_PART_OF_DISK if processes == best else None,
            note=note,
        )
        for processes, rate in ours.items()
    ]
