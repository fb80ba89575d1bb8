"""`dovetail timeline`: create, list, describe (also live) and delete timelines."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.completing import timeline_names
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    target_of,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.program import program
from dovetail.cli.timeline_client import connect_to, run
from dovetail.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from dovetail.cli.options import Target
    from dovetail.timeline.frames import Described

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail timeline create reminders",
        "dovetail timeline schedule reminders 'call Ada' --in 2h",
    ),
)

TimelineArgument = Annotated[
    str,
    typer.Argument(metavar="TIMELINE", help="Name of the timeline.", autocompletion=timeline_names),
]
#: Time between two pictures of the live view.
_WATCH_S = 1.0


@app.command(
    "create",
    epilog=examples(
        "dovetail timeline create reminders",
        "dovetail timeline create reminders --config attempts_max=5 --config window_ms=500",
    ),
)
def create(
    ctx: typer.Context,
    timeline: TimelineArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="Timeline setting; repeatable."),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a timeline. Exit code 4 if it exists."""
    from dovetail.cli.output import note, print_json
    from dovetail.timeline.config import check_name, config_of

    target = target_of(ctx, bootstrap, timeout)
    check_name(timeline)
    given: dict[str, str | int] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"--config {text!r} is no setting; write --config name=value")
        given[name] = value
    config = config_of(given)

    async def work() -> None:
        async with connect_to(target) as d:
            await d.timeline(timeline).create(config)

    run(target, work())
    if as_json:
        print_json({"timeline": timeline, "config": given})
    else:
        note(f"created timeline {timeline!r}")


@app.command("list", epilog=examples("dovetail timeline list", "dovetail timeline list --json"))
def list_timelines(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the timelines with their messages by state."""
    from dovetail.cli.output import note, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)

    async def work() -> list[dict[str, object]]:
        async with connect_to(target) as d:
            rows: list[dict[str, object]] = []
            for name, state in await d.timelines():
                row: dict[str, object] = {"timeline": name, "state": state}
                if state == "ready":
                    row |= _counted(await d.timeline(name).describe())
                rows.append(row)
            return rows

    rows = run(target, work())
    columns = ["timeline", "state", "waiting", "due", "leased", "dead", "consumers"]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(columns, ([row.get(column) for column in columns] for row in rows))
    else:
        note(f"no timelines yet; create one: {program()} timeline create reminders")


def _counted(found: "Described") -> dict[str, object]:
    counts = found.counts
    return {
        "waiting": counts.waiting,
        "due": counts.due,
        "leased": counts.leased,
        "dead": counts.dead,
        "consumers": len(found.consumers),
    }


@app.command(
    "describe",
    epilog=examples(
        "dovetail timeline describe reminders", "dovetail timeline describe reminders --watch"
    ),
)
def describe(
    ctx: typer.Context,
    timeline: TimelineArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again every second; Ctrl-C ends it.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a timeline: messages by state, load, lateness, consumers and settings."""
    import msgspec

    from dovetail.cli.output import answers, print_json

    target = target_of(ctx, bootstrap, timeout)
    if watch and as_json:
        raise InvalidInput("--watch is for people; leave --json out, or call it again and again")
    if watch:
        _watch(target, timeline)
        return

    async def work() -> "Described":
        async with connect_to(target) as d:
            return await d.timeline(timeline).describe()

    found = run(target, work())
    if as_json:
        plain = {
            "timeline": found.timeline,
            **_counted(found),
            "late_ms": {"p50": found.late_ms_p50, "p99": found.late_ms_p99},
            "arrivals_per_second": found.signals.arrivals,
            "done_per_second": found.signals.done,
            "next_windows": found.signals.windows,
            "consumers_suggested": found.signals.consumers_suggested,
            "condition": found.signals.condition,
            "reasons": found.signals.reasons,
            "config": msgspec.to_builtins(found.config),
            "consumer_list": [msgspec.structs.asdict(each) for each in found.consumers],
        }
        print_json(plain)
        return
    console = answers()
    for table in _tables(found, with_settings=True):
        console.print(table)


def _watch(target: "Target", timeline: str) -> None:
    from rich.console import Group
    from rich.live import Live

    async def work() -> None:
        async with connect_to(target) as d:
            found = await d.timeline(timeline).describe()
            with Live(Group(*_tables(found)), auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(_WATCH_S)
                    found = await d.timeline(timeline).describe()
                    live.update(Group(*_tables(found)), refresh=True)

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        return


def _tables(found: "Described", *, with_settings: bool = False) -> "list[Table]":
    import msgspec
    from rich.table import Table

    counts, signals = found.counts, found.signals
    now = Table(title=found.timeline, title_justify="left", header_style="bold")
    for name in ("waiting", "due", "leased", "dead", "late p50", "late p99", "in/s", "done/s"):
        now.add_column(name, justify="right")
    now.add_row(
        f"{counts.waiting:,}",
        f"{counts.due:,}",
        f"{counts.leased:,}",
        f"{counts.dead:,}",
        f"{found.late_ms_p50:,.1f} ms",
        f"{found.late_ms_p99:,.1f} ms",
        f"{signals.arrivals:,.1f}",
        f"{signals.done:,.1f}",
    )
    ahead = ", ".join(f"{count:,}" for count in signals.windows)
    now.caption = (
        f"next windows: {ahead}; consumers {signals.consumers}, suggested "
        f"{signals.consumers_suggested}; {signals.condition} {'; '.join(signals.reasons)}"
    )
    tables = [now]
    if found.consumers:
        table = Table(header_style="bold")
        for name in ("consumer", "rack", "buckets", "credit", "held", "latency", "lease"):
            table.add_column(name, justify="left" if name in ("consumer", "rack") else "right")
        for each in found.consumers:
            table.add_row(
                each.id,
                each.rack,
                f"{each.buckets:,}",
                f"{each.credit:,}",
                f"{each.leased:,}",
                f"{each.latency_ms:.1f} ms",
                f"{each.lease_ms:,} ms",
            )
        tables.append(table)
    if with_settings:
        table = Table("setting", "value", header_style="bold")
        for name, value in msgspec.to_builtins(found.config).items():
            table.add_row(name, str(value))
        tables.append(table)
    return tables


@app.command(
    "delete",
    epilog=examples("dovetail timeline delete reminders", "dovetail timeline delete old --yes"),
)
def delete(
    ctx: typer.Context,
    timeline: TimelineArgument,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a timeline with all its messages. Exit code 3 if there is none."""
    from dovetail.cli.output import note, print_json

    target = target_of(ctx, bootstrap, timeout)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput(
            f"deleting {timeline} needs a yes, and there is no terminal to ask on; give --yes"
        )
    question = f"Delete timeline {timeline} on {target.bootstrap} with all messages?"
    if not yes and not typer.confirm(question, err=True):
        note("nothing was deleted")
        raise typer.Exit(ExitCode.FAILED)

    async def work() -> None:
        async with connect_to(target) as d:
            await d.timeline(timeline).delete()

    run(target, work())
    if as_json:
        print_json({"deleted": [timeline]})
    else:
        note(f"deleted timeline {timeline!r}")
