"""A part of the house under load: what can be done to it, whether it moves, what must be true."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Heal = Callable[[], object]


class Part(Protocol):
    """Starts when it is made."""

    name: str

    def faults(self) -> Sequence[Callable[[], Heal]]:
        """Each does its harm when it is called, and returns how to heal it."""
        ...

    def done(self) -> int:
        """How much is done; grows as long as the part is not stuck."""
        ...

    def pids(self) -> Mapping[str, int]:
        """Long-lived processes of the product, by name."""
        ...

    def finish(self) -> None:
        """Ends the load; returns when all that was sent is done."""
        ...

    def judge(self) -> str:
        """Fails if a promise was broken; says what was counted."""
        ...

    def end(self) -> None:
        """Kills what is left."""
        ...
