"""Memory and file handles of processes: as many at the end as when they were warm."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

#: A process is warm when it has lived under load for so long.
WARM_S = 60.0
#: What caches, allocators and one more connection of each client may add.
RSS_FACTOR_MAX, RSS_BYTES_MORE = 1.3, 64 << 20
FILES_MORE = 60


@dataclass(frozen=True)
class Held:
    rss_bytes: int
    files: int


class Book:
    """What each process held when it was warm, and what it holds now."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], float] = {}
        self._warm: dict[tuple[str, int], Held] = {}

    def look(self, pids: Mapping[str, int]) -> None:
        """Called now and then."""
        now = time.monotonic()
        for name, pid in pids.items():
            since = self._first.setdefault((name, pid), now)
            if (name, pid) not in self._warm and now - since >= WARM_S:
                try:
                    self._warm[name, pid] = _held(pid)
                except psutil.NoSuchProcess:
                    del self._first[name, pid]

    def judge(self, pids: Mapping[str, int]) -> list[str]:
        """A line for each process; fails if one holds more than it may."""
        lines = []
        for name, pid in pids.items():
            now, warm = _held(pid), self._warm.get((name, pid))
            if warm is None:
                lines.append(f"{name}: {now.rss_bytes >> 20} MiB, {now.files} files, new")
                continue
            most = Held(
                int(warm.rss_bytes * RSS_FACTOR_MAX) + RSS_BYTES_MORE, warm.files + FILES_MORE
            )
            lines.append(
                f"{name}: {warm.rss_bytes >> 20} to {now.rss_bytes >> 20} MiB "
                f"(at most {most.rss_bytes >> 20}), {warm.files} to {now.files} files "
                f"(at most {most.files})"
            )
            assert now.rss_bytes <= most.rss_bytes, f"memory grows: {lines[-1]}"
            assert now.files <= most.files, f"file handles grow: {lines[-1]}"
        return lines


def _held(pid: int) -> Held:
    process = psutil.Process(pid)
    return Held(process.memory_info().rss, process.num_fds())
