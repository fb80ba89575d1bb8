"""What is shown while it runs: a live view on a terminal, lines elsewhere; a proof at the end."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from examples.shop.evidence import TEAMS
from examples.shop.programs import Program
from examples.shop.shop import ORDERS
from examples.shop.sight import Sight, Watcher
from examples.shop.teams import shop
from examples.shop.verdict import Check, Figures, quantile
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

#: With everything else, 24 lines: the smallest terminal that people use.
EVENTS_SHOWN = 6
#: Width of what goes into a pipe or a file.
WIDTH_PIPED = 120
#: Between two lines of the plain view.
LINE_S = 5.0
STYLES = {"runs": "green", "killed": "bold red", "paused": "yellow", "ended": "bold red"}


class View(Protocol):
    """Where the run is shown."""

    def tell(self, text: str, style: str = "") -> None:
        """Something happened."""

    def update(self, phase: str, programs: Sequence[Program], watcher: Watcher) -> None:
        """This is how it stands."""

    def close(self) -> None:
        """The run is over."""


class PlainView:
    """Lines, for pipes and CI."""

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._told_at = console, time.monotonic(), 0.0

    def tell(self, text: str, style: str = "") -> None:
        elapsed_s = time.monotonic() - self._began
        self._console.print(
            f"{elapsed_s:6.1f} s  {text}", style=style, markup=False, soft_wrap=True
        )

    def update(self, phase: str, programs: Sequence[Program], watcher: Watcher) -> None:
        now = time.monotonic()
        if now - self._told_at < LINE_S:
            return
        self._told_at = now
        sight = watcher.last
        done = sum(sight.ends.get(shop.topics(team).results, 0) for team in TEAMS)
        away = [f"{one.name} {one.state}" for one in programs if one.state not in ("runs", "done")]
        self.tell(
            f"{phase}: {sight.orders:,} orders ({sight.declined:,} declined)"
            f", outbox {sight.outbox:,}, on the topic {sight.ends.get(ORDERS, 0):,}"
            f", jobs done {done:,} ({_teams_rate(watcher):.0f}/s), settled {sight.settled:,}"
            f", reminders {sight.reminders:,} (timeline {sight.timeline:,}), mails {sight.mails:,}"
            + (f"; {', '.join(away)}" if away else "")
        )

    def close(self) -> None:
        pass


class LiveView:
    """A screen that changes."""

    def __init__(self, console: Console, title: str) -> None:
        self._title, self._began = title, time.monotonic()
        self._events: deque[Text] = deque(maxlen=EVENTS_SHOWN)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def tell(self, text: str, style: str = "") -> None:
        elapsed_s = time.monotonic() - self._began
        line = Text(f"{elapsed_s:6.1f} s  {text}", style, no_wrap=True, overflow="ellipsis")
        self._events.append(line)

    def update(self, phase: str, programs: Sequence[Program], watcher: Watcher) -> None:
        sight, elapsed_s = watcher.last, time.monotonic() - self._began
        head = Text(f"{phase}, {elapsed_s:.0f} s", style="bold")
        if sight.ends and not sight.node_answers:
            head.append("   the node does not answer", style="bold red")
        both = Table.grid(padding=(0, 2))
        both.add_row(_stations(sight, watcher), _programs(programs))
        events = Group(*self._events, *([Text("")] * (EVENTS_SHOWN - len(self._events))))
        self._live.update(Panel(Group(head, Text(""), both, Text(""), events), title=self._title))

    def close(self) -> None:
        self._live.stop()


def _stations(sight: Sight, watcher: Watcher) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("done", "waiting", "/s"):
        table.add_column(column, justify="right")

    def row(name: str, done: int, waiting: int | None, rate: float | None) -> None:
        shown = "" if waiting is None else f"{waiting:,}"
        table.add_row(name, f"{done:,}", shown, "" if rate is None else f"{rate:,.0f}")

    def end(team: str) -> int:
        return sight.ends.get(shop.topics(team).results, 0)

    sent = sight.ends.get(ORDERS, 0)
    row("orders in the database", sight.orders, None, watcher.rate("orders"))
    row("  rolled back", sight.declined, None, watcher.rate("declined"))
    row("relay: on the topic", sent, sight.outbox, watcher.rate((ORDERS,)))
    row("team parse", end("parse"), max(0, sent - end("parse")), _rate(watcher, "parse"))
    row("team price", end("price"), None, _rate(watcher, "price"))
    row("team stock, by items", end("stock"), None, _rate(watcher, "stock"))
    through = end("ship") + end("backorder")
    row("ship and backorder", through, max(0, end("stock") - through), None)
    waiting = sight.orders - sight.settled
    row("settled in the database", sight.settled, waiting, watcher.rate("settled"))
    row("reminders fired", sight.reminders, sight.timeline, watcher.rate("reminders"))
    late = sight.late_ms
    table.add_row("  late by ms", f"p50 {quantile(late, 0.5)}", f"p99 {quantile(late, 0.99)}", "")
    row("mails written", sight.mails, sight.settled - sight.mails, watcher.rate("mails"))
    return table


def _programs(programs: Sequence[Program]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("program", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=7)
    table.add_column("starts", justify="right")
    for one in programs:
        state = Text(one.state, style=STYLES.get(one.state, "dim"))
        table.add_row(one.name, state, str(one.starts))
    return table


def _rate(watcher: Watcher, team: str) -> float:
    return watcher.rate((shop.topics(team).results,))


def _teams_rate(watcher: Watcher) -> float:
    return watcher.rate(tuple(shop.topics(team).results for team in TEAMS))


def proof_console() -> Console:
    """A pipe has no width of its own, and lines are not to be broken there."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_PIPED)


def print_proof(console: Console, checks: Sequence[Check], measured: Figures) -> None:
    """The table at the end, and what was measured."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("what went in and came out", no_wrap=True)
    for column in ("expected", "found", "lost", "doubled", "wrong"):
        table.add_column(column, justify="right", no_wrap=True, min_width=max(5, len(column)))
    table.add_column("holds", no_wrap=True, min_width=5)
    for check in checks:
        parts = (check.lost, check.doubled, (*check.foreign, *check.wrong))
        cells = [Text(f"{len(part):,}", style="bold red" if part else "dim") for part in parts]
        mark = Text("yes", style="green") if check.holds else Text("NO", style="bold red")
        table.add_row(check.name, f"{check.expected:,}", f"{check.found:,}", *cells, mark)
    console.print()
    console.print(table)
    console.print()
    for line in _measurements(measured):
        console.print(line, soft_wrap=True)
    for check in checks:
        if not check.holds:
            console.print(check.complaint, style="bold red", markup=False, soft_wrap=True)


def _measurements(measured: Figures) -> Iterator[str]:
    late, settled = measured.late_ms, measured.settled_ms
    yield (
        f"reminders: {len(late):,} fired, {measured.needless:,} of them needless; "
        f"{measured.cancelled:,} cancelled, as their orders were paid"
    )
    yield (
        f"lateness of reminders: p50 {quantile(late, 0.5):,} ms, p99 {quantile(late, 0.99):,} ms, "
        f"at most {late[-1] if late else 0:,} ms"
    )
    yield (
        f"from order to outcome: p50 {quantile(settled, 0.5) / 1000:.1f} s, "
        f"p99 {quantile(settled, 0.99) / 1000:.1f} s, the start of Spark included"
    )
    leads = [f"{replica} in term {term}: {n:,} mails" for term, replica, n in measured.leads]
    yield f"leads of the notifier: {'; '.join(leads)}"
