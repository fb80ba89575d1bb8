"""How much memory this machine has left, for those who decide whether to start a process."""

from pathlib import Path


def memory_left() -> float:
    """The part of this machine's memory that is not used; 1 if it does not say."""
    try:
        with Path("/proc/meminfo").open() as file:
            sizes = dict(line.split()[:2] for line in file)
        return int(sizes["MemAvailable:"]) / int(sizes["MemTotal:"])
    except (OSError, KeyError, ValueError, ZeroDivisionError):
        return 1.0
