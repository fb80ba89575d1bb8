"""The client of timelines for commands: time limits, and nobody at the address as its own error."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.cli.options import Target
from dovetail.cli.outcome import Unreachable
from dovetail.cli.program import program
from dovetail.errors import Unavailable

if TYPE_CHECKING:
    from dovetail.sdk import Dovetail

#: Time to try an address.
_CONNECT_S_MAX = 3.0

Result = TypeVar("Result")


def run(target: Target, work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a command; nobody at the address is an error of its own."""

    async def within() -> Result:
        try:
            async with asyncio.timeout(target.timeout_s):
                return await work
        except TimeoutError as error:
            raise Unreachable(
                f"{target.bootstrap} did not answer within {target.timeout_s:g} s; "
                "is the node up? --bootstrap names another address"
            ) from error
        except Unavailable as error:
            if "no connection to" in str(error):
                raise Unreachable(str(error)) from error
            raise

    return asyncio.run(within())


def connect_to(target: Target) -> "Dovetail":
    """A client of the node; inside `async with` it is connected. Raises `Unreachable`."""
    from dovetail.sdk import connect
    from dovetail.sdk.link import split_address

    host, port = split_address(target.bootstrap)
    try:
        socket.create_connection(
            (host, port), timeout=min(_CONNECT_S_MAX, target.timeout_s)
        ).close()
    except OSError as error:
        raise Unreachable(
            f"no node answers at {target.bootstrap} ({error.strerror or error}); start one with "
            f"`{program()} up`, or name its address with --bootstrap"
        ) from error
    return connect(target.bootstrap, client_id="dovetail-cli")
