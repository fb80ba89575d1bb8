"""A measured value, what it is held against, and whether it passes; printed and as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Verdict(Enum):
    """What became of a line."""

    PASS = "pass"
    MISS = "MISS"
    SKIPPED = "SKIPPED"
    #: Shown for the reader; no rule is attached.
    SHOWN = "-"


_STYLES = {Verdict.PASS: "green", Verdict.MISS: "bold red", Verdict.SKIPPED: "bold yellow"}


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table; `ratio` is value over `against`."""

    case: str
    name: str
    value: float | None
    unit: str
    against_name: str = ""
    against: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if self.value is None or not self.against:
            return None
        return self.value / self.against

    @property
    def verdict(self) -> Verdict:
        if self.ratio_min is None and self.ratio_max is None:
            return Verdict.SHOWN
        if self.ratio is None:
            return Verdict.SKIPPED
        low = self.ratio_min is None or self.ratio >= self.ratio_min
        high = self.ratio_max is None or self.ratio <= self.ratio_max
        return Verdict.PASS if low and high else Verdict.MISS

    @property
    def rule(self) -> str:
        if self.ratio_min is not None:
            return f"≥ {self.ratio_min:g}"
        return "" if self.ratio_max is None else f"≤ {self.ratio_max:g}"

    def as_json(self) -> dict[str, object]:
        """Everything in the line, the computed parts included."""
        return {**asdict(self), "ratio": self.ratio, "verdict": self.verdict.value}


def number(value: float | None) -> str:
    """Three digits that matter, thousands grouped."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def print_table(console: Console, lines: Sequence[Line]) -> None:
    """The table, then the notes that belong to it."""
    table = Table(header_style="bold", pad_edge=False)
    for title in ("", "measured", "value", "unit", "against", "value", "ratio", "rule", ""):
        right = title in ("value", "ratio", "rule")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    notes: list[str] = []
    for line in lines:
        mark = ""
        if line.note:
            if line.note not in notes:
                notes.append(line.note)
            mark = f" [{notes.index(line.note) + 1}]"
        verdict = line.verdict
        table.add_row(
            line.case,
            Text(line.name + mark),
            number(line.value),
            line.unit,
            Text(line.against_name),
            number(line.against) if line.against_name else "",
            number(line.ratio) if line.ratio is not None else "",
            line.rule,
            Text(verdict.value, style=_STYLES.get(verdict, "dim")),
        )
    console.print(table)
    for at, note in enumerate(notes, start=1):
        console.print(Text(f"[{at}] {note}"), soft_wrap=True)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    page = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(page / 1024**3, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def write_json(path: Path, lines: Sequence[Line], *, options: dict[str, object]) -> None:
    """Writes all lines with the machine and the options of the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "machine": machine(),
        "options": options,
        "lines": [line.as_json() for line in lines],
    }
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
