"""Limits background work to a rate."""


class ByteRate:
    """Spreads bytes over time: no more than a rate, and no burst after a pause."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._free_at_ms = 0.0

    def take(self, size: int, *, now_ms: float) -> float:
        """Milliseconds to wait before these bytes go."""
        start = max(now_ms, self._free_at_ms)
        self._free_at_ms = start + size / self._bytes_per_ms
        return start - now_ms
