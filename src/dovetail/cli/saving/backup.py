"""`dovetail backup`: everything that a running node holds, in a file."""

import errno
import os
import time
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from dovetail.admin.node_http import NodeHttp, download
from dovetail.backup.archive import Archive, Contents
from dovetail.cli.options import JsonOption, examples, settings_of
from dovetail.cli.output import note, print_json
from dovetail.cli.saving.draft import drafted, publish
from dovetail.durable_files import sync_folder
from dovetail.errors import DiskFull, Exists, Unavailable

#: A node that sends nothing for so long has hung, or copies a timeline of many gigabytes.
_SILENCE_S_MAX = 600.0

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup file.")]

EPILOG = examples(
    "dovetail backup orders-2026-11-17.tar",
    "dovetail backup node-7.tar --http https://queue.example.org:9080",
)


def backup(
    ctx: typer.Context,
    file: FileArgument,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="URL", help="HTTP of the node; default: http.host, .port."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything that a running node holds to a file.

    The file contains topics, groups, timelines, users and access rules, with everything that was
    acknowledged before the command started. It gets its name only when it is complete and has been
    read back. The node keeps serving.
    """
    if file.exists() or file.is_symlink():
        raise Exists(f"{file} exists; choose another name, a backup overwrites nothing")
    node = NodeHttp.of(settings_of(ctx), http)
    try:
        with drafted(file) as (draft, written):
            _fetch(node, written)
            with Archive(draft) as archive:
                archive.check()
                contents = archive.contents
            publish(draft, file)
        sync_folder(file.absolute().parent)
    except OSError as error:
        raise _explained(error, file) from error
    _tell(file, contents, as_json=as_json)


def _fetch(node: NodeHttp, written: BinaryIO) -> None:
    def write(piece: bytes) -> None:
        written.write(piece)

    download(node, "/v1/backup", write, limit_s=_SILENCE_S_MAX)
    written.flush()
    os.fsync(written.fileno())


def _tell(file: Path, contents: Contents, *, as_json: bool) -> None:
    size = file.stat().st_size
    if as_json:
        print_json(
            {
                "file": str(file),
                "bytes": size,
                "at_ms": contents.at_ms,
                "node_id": contents.node_id,
                "timelines": contents.timelines,
                "unreadable": contents.unreadable,
            }
        )
        return

    note(f"{file}: node {contents.node_id} as of {date(contents.at_ms)}, {size:,} bytes, checked")
    for name in contents.unreadable:
        note(f"warning: the disk could not read all of {name}; the rest is damaged in the backup")
    if contents.timelines == "postgres":
        note("timelines are in PostgreSQL and not in this file: back it up with pg_dump")


def date(at_ms: int) -> str:
    """The moment of a backup, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms // 1000))


def _explained(error: OSError, file: Path) -> Exists | DiskFull | Unavailable:
    if isinstance(error, FileExistsError):
        return Exists(f"{file} exists; choose another name, a backup overwrites nothing")
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"no room for {file}: {reason}; the incomplete backup was removed")
    return Unavailable(f"cannot write {file}: {reason}")
