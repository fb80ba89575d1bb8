"""`dovetail user`: who can log in."""

import sys
from typing import Annotated, Any

import typer

from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples, target_of
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
    """Make a user, or change its password. All connections of the old password end.

    The password is asked for, or is the first line of standard input; it never leaves this machine,
    only salted keys of it do.
    """
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    from dovetail.access.credentials import ROUNDS
    from dovetail.cli.client import call, connect, wait_for
    from dovetail.cli.output import note

    target = target_of(ctx, bootstrap, timeout)
    password = _password(name)
    admin = connect(target)
    doing = f"setting the password of {name}"
    changes: list[Any] = [
        UserScramCredentialUpsertion(
            name, ScramCredentialInfo(mechanism, ROUNDS), password.encode()
        )
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    futures = call(doing, target, lambda: admin.alter_user_scram_credentials(changes))
    for future in futures.values():
        wait_for(doing, target, future)
    note(f"{name} can log in; allow it something with `{program()} access allow {name} ...`")


@app.command("list", epilog=examples("dovetail user list", "dovetail user list --json"))
def list_users(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all users and how they can log in."""
    from dovetail.cli.client import call, connect, wait_for
    from dovetail.cli.output import note, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    doing = "listing users"
    future = call(doing, target, admin.describe_user_scram_credentials)
    found = wait_for(doing, target, future)
    rows = [
        (
            name,
            ", ".join(
                sorted(
                    info.mechanism.name.replace("_", "-")
                    for info in found[name].scram_credential_infos
                )
            ),
        )
        for name in sorted(found)
    ]
    if as_json:
        print_json([{"user": name, "mechanisms": how.split(", ")} for name, how in rows])
    elif rows:
        print_table(["user", "mechanisms"], rows)
    else:
        note(f"no users yet; make one with `{program()} user set NAME`")


@app.command("delete", epilog=examples("dovetail user delete alice --yes"))
def delete(
    ctx: typer.Context,
    name: NameArgument,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Delete a user: it cannot log in any more, and all its connections end."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        ScramMechanism,
        UserScramCredentialDeletion,
    )

    from dovetail.cli.client import call, connect, wait_for
    from dovetail.cli.output import note

    target = target_of(ctx, bootstrap, timeout)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput(f"deleting {name} needs a yes, and there is no terminal; give --yes")
    if not yes and not typer.confirm(f"Delete user {name}?", err=True):
        raise typer.Abort
    admin = connect(target)
    doing = f"deleting user {name}"
    future = call(doing, target, lambda: admin.describe_user_scram_credentials([name]))[name]
    known = wait_for(doing, target, future).scram_credential_infos
    changes: list[Any] = [
        UserScramCredentialDeletion(name, ScramMechanism(info.mechanism)) for info in known
    ]
    for answer in call(doing, target, lambda: admin.alter_user_scram_credentials(changes)).values():
        wait_for(doing, target, answer)
    note(f"{name} is deleted; rules that name it stay: `{program()} access list --user {name}`")


def _password(name: str) -> str:
    if sys.stdin.isatty():
        return str(
            typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidInput("standard input has no password in its first line")
    return password
