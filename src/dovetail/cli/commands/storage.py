"""`dovetail storage`: the storage nodes of a cluster, and taking one out of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from dovetail.admin import storage
from dovetail.cli.options import (
    ConfigOption,
    EtcdOption,
    JsonOption,
    SetOption,
    etcd_flags,
    examples,
    settings_of,
)
from dovetail.cli.output import note, print_rows
from dovetail.cli.program import program
from dovetail.coordination import Coordinator
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import InvalidSetting

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

Answer = TypeVar("Answer")


@app.command("list", epilog=examples("dovetail storage list --etcd 10.0.0.1:2379"))
def list_nodes(
    ctx: typer.Context,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the storage nodes with their state and the number of ledgers on each."""
    found = _ask(ctx, etcd, config_file, assignments, storage.states)
    print_rows(
        as_json,
        [
            {"node": node.node_id, "state": node.state.value, "ledgers": node.ledgers_left}
            for node in found
        ],
        empty=f"no storage nodes yet; start one: {program()} node --roles storage --node-id 1",
    )


@app.command("drain", epilog=examples("dovetail storage drain 3 --etcd 10.0.0.1:2379"))
def drain(
    ctx: typer.Context,
    number: NumberArgument,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Move all data off a storage node. The node keeps serving meanwhile, or may be dead.

    New ledgers avoid the node from now on. Its ledgers are copied to others in the background.
    """

    async def drained(coordinator: Coordinator) -> int:
        await storage.drain(coordinator, number, now_ms=_now_ms())
        return (await storage.state(coordinator, number)).ledgers_left

    left = _ask(ctx, etcd, config_file, assignments, drained)
    note(
        f"storage node {number} is draining; {left} ledgers to go. Watch it with "
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
    """Stop draining a storage node and keep it. Ledgers that were moved stay where they are."""
    _ask(ctx, etcd, config_file, assignments, lambda c: storage.cancel(c, number))
    note(f"storage node {number} is kept")


@app.command("remove", epilog=examples("dovetail storage remove 3 --etcd 10.0.0.1:2379"))
def remove(
    ctx: typer.Context,
    number: NumberArgument,
    etcd: EtcdOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Remove a drained storage node for good; refused while a ledger needs it."""
    _ask(
        ctx,
        etcd,
        config_file,
        assignments,
        lambda c: storage.remove(c, number, now_ms=_now_ms()),
    )
    note(f"storage node {number} is removed; stop its process. Its disk is no longer needed")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _ask(
    ctx: typer.Context,
    etcd: str | None,
    config_file: ConfigOption,
    assignments: SetOption,
    ask: Callable[[Coordinator], Awaitable[Answer]],
) -> Answer:
    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=etcd_flags(etcd))
    if settings.coordination.kind != "etcd":
        raise InvalidSetting(
            "the storage nodes are listed in etcd; give its address with --etcd host:port "
            "(coordination.kind and .endpoints)"
        )

    async def run() -> Answer:
        async with await EtcdCoordinator.open(EtcdSettings.of(settings.coordination)) as c:
            return await ask(c)

    return asyncio.run(run())
