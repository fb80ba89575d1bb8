"""`dovetail restore`: a backup into an empty data folder."""

import asyncio

import typer

from dovetail.backup import restoring
from dovetail.backup.archive import Archive
from dovetail.cli.commands.up import DataDirOption
from dovetail.cli.options import JsonOption, examples, flags_of, settings_of
from dovetail.cli.output import note, print_json
from dovetail.cli.program import program
from dovetail.cli.saving.backup import FileArgument, date
from dovetail.clock import SystemClock

EPILOG = examples(
    "dovetail restore orders-2026-11-17.tar --data-dir /var/lib/dovetail",
    "dovetail up --data-dir /var/lib/dovetail",
)


def restore(
    ctx: typer.Context,
    file: FileArgument,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into an empty data folder.

    A node can then start from that folder. Terms and ids continue after a gap, so that none is
    assigned twice. Restart producers and consumers: everything written after the backup is gone,
    and running clients may remember it.
    """
    flags = flags_of({"node.data_dir": ("--data-dir", data_dir)})
    folder = settings_of(ctx, flags=flags).node.data_dir
    with Archive(file) as archive:
        contents = asyncio.run(restoring.restore(archive, folder, SystemClock()))
    if as_json:
        print_json({"data_dir": str(folder), "at_ms": contents.at_ms, "node_id": contents.node_id})
        return
    note(f"{folder} is as node {contents.node_id} was on {date(contents.at_ms)}")
    note(f"start it with `{program()} up --data-dir {folder}` and the settings that it had")
