"""`dovetail certificates`: a certificate authority for trials and small clusters."""

from pathlib import Path
from typing import Annotated

import typer

from dovetail.access.certificates import DAYS_DEFAULT, Authority
from dovetail.cli.options import JsonOption, examples
from dovetail.cli.output import note, print_json
from dovetail.errors import Unavailable

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail certificates node node-1 --host queue.example.org",
        "dovetail certificates client shop",
    ),
)

FolderOption = Annotated[
    Path,
    typer.Option("--folder", metavar="FOLDER", help="Folder of the CA; created if missing."),
]
DaysOption = Annotated[
    int, typer.Option("--days", metavar="DAYS", help="How long the certificate is valid.")
]
FOLDER_DEFAULT = Path("certificates")

#: Where a node is reached on its own machine.
_HERE = ("localhost", "127.0.0.1", "::1")


@app.command(
    "node",
    epilog=examples(
        "dovetail certificates node node-1 --host queue.example.org --host 10.0.0.7",
        "dovetail certificates node node-1 --folder /etc/dovetail",
    ),
)
def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the node.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="How clients reach it; repeatable."),
    ] = None,
    folder: FolderOption = FOLDER_DEFAULT,
    days: DaysOption = DAYS_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Create a certificate for a node, valid for its hosts and for this machine.

    The first certificate in a folder also creates the CA: ca.pem and ca.key.
    """
    hosts_all = tuple(dict.fromkeys([*(hosts or ()), *_HERE]))
    _issue(name, hosts_all, folder, days, as_json=as_json)


@app.command("client", epilog=examples("dovetail certificates client shop --days 90"))
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    folder: FolderOption = FOLDER_DEFAULT,
    days: DaysOption = DAYS_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Create a certificate for a client. Nodes take its name as the user name."""
    _issue(name, (), folder, days, as_json=as_json)


def _issue(name: str, hosts: tuple[str, ...], folder: Path, days: int, *, as_json: bool) -> None:
    try:
        authority = Authority(folder)
        made = authority.issue(name, hosts=hosts, days=days)
    except OSError as error:
        raise Unavailable(f"cannot write to {folder}: {error.strerror}") from error
    files = {"ca": authority.file, "certificate": made.certificate, "key": made.key}
    if as_json:
        print_json({kind: str(path) for kind, path in files.items()})
        return
    note(f"{made.certificate} and {made.key}; others trust {authority.file}")
