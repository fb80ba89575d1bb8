"""The client of timelines for commands: time limits, and nobody at the address as its own error."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.cli.options import Target
from dovetail.errors import InvalidInput, InvalidSetting, Unavailable, Unreachable

if TYPE_CHECKING:
    from dovetail.timeline.client import Dovetail
    from dovetail.wire.login import ClientLogin

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
    from dovetail.cli.client import check_reachable
    from dovetail.timeline.client import connect

    check_reachable(target)
    login = login_of(target)
    return connect(
        target.bootstrap,
        client_id="dovetail-cli",
        tls=login.tls,
        user=login.user,
        password=login.password,
        mechanism=login.mechanism,
    )


def login_of(target: Target) -> "ClientLogin":
    """TLS and login of the settings, for a link of our own. Raises `InvalidSetting`."""
    from dovetail.wire.login import ClientLogin

    try:
        return ClientLogin.of(target.security)
    except InvalidInput as error:
        raise InvalidSetting(
            f"{error} (client.tls_ca, client.tls_certificate, client.tls_key, client.mechanism)"
        ) from error
