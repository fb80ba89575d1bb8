"""`dovetail user`: users that can log in."""

import sys
from typing import Annotated

import typer

from dovetail.admin import users as admin
from dovetail.cli.client import kafka_of
from dovetail.cli.confirming import confirm
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, YesOption, examples
from dovetail.cli.output import note, print_rows
from dovetail.cli.program import program
from dovetail.errors import InvalidInput

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail user set alice", "dovetail user list"),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


@app.command(
    "set",
    epilog=examples("dovetail user set alice", "dovetail user set alice < password.txt"),
)
def set_password(
    ctx: typer.Context,
    name: NameArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Create a user, or change its password. Connections with the old password end.

    The password is asked for, or read from the first line of standard input. It never leaves this
    machine; only salted keys derived from it do.
    """
    password = _password(name)
    admin.set_password(kafka_of(ctx, bootstrap, timeout), name, password)
    note(f"{name} can log in; grant rights with `{program()} access allow {name} ...`")


@app.command("list", epilog=examples("dovetail user list", "dovetail user list --json"))
def list_users(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all users and how they can log in."""
    rows: list[dict[str, object]] = [
        {"user": user.user, "mechanisms": user.mechanisms}
        for user in admin.list_users(kafka_of(ctx, bootstrap, timeout))
    ]
    empty = f"no users yet; create one with `{program()} user set NAME`"
    print_rows(as_json, rows, empty=empty)


@app.command("delete", epilog=examples("dovetail user delete alice --yes"))
def delete(
    ctx: typer.Context,
    name: NameArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Delete a user. It cannot log in any more, and its connections end."""
    confirm(f"Delete user {name}?", yes=yes)
    admin.delete_user(kafka_of(ctx, bootstrap, timeout), name)
    note(f"deleted {name}; its rules stay: `{program()} access list --user {name}`")


def _password(name: str) -> str:
    if sys.stdin.isatty():
        return str(
            typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidInput("standard input has no password in its first line")
    return password
