"""The result of a check, and its fix."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer; whatever is a warning or failed has a `fix`."""

    check: str
    state: State
    text: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.state in ("warning", "failed") and not self.fix:
            raise ValueError(f"{self.check}: {self.state} without a fix: {self.text}")


def ok(check: str, text: str) -> Finding:
    """As it should be."""
    return Finding(check, "ok", text)


def skipped(check: str, text: str) -> Finding:
    """Nothing to look at; the text says why."""
    return Finding(check, "skipped", text)


def warning(check: str, text: str, *, fix: str) -> Finding:
    """Works, and will hurt."""
    return Finding(check, "warning", text, fix)


def failed(check: str, text: str, *, fix: str) -> Finding:
    """Does not work, or loses data."""
    return Finding(check, "failed", text, fix)
