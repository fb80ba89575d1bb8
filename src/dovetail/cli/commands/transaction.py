"""`dovetail transaction`: lists transactional ids, and ends a hanging transaction."""

from typing import Annotated

import msgspec
import typer

from dovetail.admin import transactions as admin
from dovetail.cli.client import kafka_of
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples
from dovetail.cli.output import note, print_rows

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail transaction list", "dovetail transaction abort till-1"),
)


@app.command(
    "list", epilog=examples("dovetail transaction list", "dovetail transaction list --json")
)
def list_transactions(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactional ids with their state and the partitions of an open transaction."""
    found = admin.list_transactions(kafka_of(ctx, bootstrap, timeout))
    rows = [msgspec.to_builtins(one) for one in found]
    if not as_json:
        rows = [{**row, "partitions": " ".join(row["partitions"])} for row in rows]
    columns = ["id", "state", "producer", "epoch", "timeout_ms", "started_ms", "partitions"]
    print_rows(as_json, rows, columns=columns, empty="no transactional ids yet")


@app.command("abort", epilog=examples("dovetail transaction abort till-1"))
def abort(
    ctx: typer.Context,
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="The transactional id of the producer.")
    ],
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Abort the open transaction of a producer, and fence the producer.

    A producer that still runs fails at its next request and has to start again.
    """
    admin.abort_transaction(kafka_of(ctx, bootstrap, timeout), transactional_id)
    note(f"producers of {transactional_id} are fenced, and nothing of them is open")
