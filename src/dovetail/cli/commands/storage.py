"""`dovetail storage`: the storage nodes of a cluster, and taking one out of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dovetail.cli.options import ConfigOption, JsonOption, SetOption, examples, settings_of
from dovetail.cli.program import program
from dovetail.errors import InvalidSetting

if TYPE_CHECKING:
    from dovetail.coordination import Coordinator
    from dovetail.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail storage list --etcd 10.0.0.1:2379",
        "dovetail storage drain 3 --etcd 10.0.0.1:2379",
    ),
)

NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=1, help="Number of the storage node (node.node_id).")
]
EtcdOption = Annotated[
    str | None,
    typer.Option("--etcd", metavar="HOST:PORT[,...]", help="Addresses of etcd's members."),
]

Answer = TypeVar("Answer")


@app.command("list", epilog=examples("dovetail storage list --etcd 10.0.0.1:2379"))
def list_nodes(
    ctx: typer.Context,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all storage nodes with their state and the ledgers that name them."""
    from dovetail.admin.storage import states
    from dovetail.cli.output import note, print_json, print_table

    found = _ask(_settings(ctx, etcd, config_file, assignments), states)
    rows = [(node.node_id, node.state.value, node.ledgers_left) for node in found]
    if as_json:
        print_json([dict(zip(("node", "state", "ledgers"), row, strict=True)) for row in rows])
    elif rows:
        print_table(["node", "state", "ledgers"], rows)
    else:
        note(f"no storage nodes yet; start one: {program()} node --roles storage --node-id 1")


@app.command("drain", epilog=examples("dovetail storage drain 3 --etcd 10.0.0.1:2379"))
def drain(
    ctx: typer.Context,
    number: NumberArgument,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Move everything off a storage node, while it goes on serving; a dead one can be drained too.

    New ledgers avoid it from now on, and what it holds is copied to others in the background.
    """
    from dovetail.admin import storage as decommission
    from dovetail.cli.output import note

    now_ms = int(time.time() * 1000)
    settings = _settings(ctx, etcd, config_file, assignments)
    _ask(settings, lambda c: decommission.drain(c, number, now_ms=now_ms))
    left = _ask(settings, lambda c: decommission.state(c, number)).ledgers_left
    note(
        f"storage node {number} is being drained; {left} ledgers to go. Watch it with "
        f"`{program()} storage list`; when it is drained: `{program()} storage remove {number}`"
    )


@app.command("keep", epilog=examples("dovetail storage keep 3 --etcd 10.0.0.1:2379"))
def keep(
    ctx: typer.Context,
    number: NumberArgument,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Keep a storage node that was to be drained. What was moved stays moved."""
    from dovetail.admin import storage as decommission
    from dovetail.cli.output import note

    _ask(
        _settings(ctx, etcd, config_file, assignments),
        lambda c: decommission.cancel(c, number),
    )
    note(f"storage node {number} is kept")


@app.command("remove", epilog=examples("dovetail storage remove 3 --etcd 10.0.0.1:2379"))
def remove(
    ctx: typer.Context,
    number: NumberArgument,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Strike a drained storage node off for good; refused while a ledger needs it."""
    from dovetail.admin import storage as decommission
    from dovetail.cli.output import note

    now_ms = int(time.time() * 1000)
    _ask(
        _settings(ctx, etcd, config_file, assignments),
        lambda c: decommission.remove(c, number, now_ms=now_ms),
    )
    note(f"storage node {number} is removed; stop its process, its disk is not needed any more")


def _settings(
    ctx: typer.Context, etcd: str | None, config_file: ConfigOption, assignments: SetOption
) -> "Settings":
    from dovetail.settings import Flag

    flags = []
    if etcd is not None:
        flags = [
            Flag("coordination.kind", "etcd", "--etcd"),
            Flag("coordination.endpoints", etcd, "--etcd"),
        ]
    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    if settings.coordination.kind != "etcd":
        raise InvalidSetting(
            "storage nodes are looked up in etcd: give its address with --etcd host:port "
            "(coordination.kind and .endpoints)"
        )
    return settings


def _ask(settings: "Settings", ask: "Callable[[Coordinator], Awaitable[Answer]]") -> Answer:
    from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings

    coordination = settings.coordination

    async def run() -> Answer:
        etcd = EtcdSettings.of(coordination)
        async with await EtcdCoordinator.open(etcd) as coordinator:
            return await ask(coordinator)

    return asyncio.run(run())
