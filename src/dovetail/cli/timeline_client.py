"""The client of timelines for commands: opened in one way, with a time limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dovetail.cli.options import Target
from dovetail.cli.program import program
from dovetail.errors import InvalidInput, InvalidSetting, Unavailable, Unreachable
from dovetail.timeline.client import Dovetail, connect
from dovetail.wire.login import ClientLogin

Result = TypeVar("Result")

#: The client itself gives up after ten seconds, and knows why.
_GRACE_S = 1.0


def ask(target: Target, work: Callable[[Dovetail], Awaitable[Result]]) -> Result:
    """What `work` returns for a connected client, within the time limit of the target.

    Raises `Unreachable` if nobody answers, and what `work` raises.
    """

    async def within() -> Result:
        try:
            limit_s = target.timeout_s + _GRACE_S
            async with asyncio.timeout(limit_s), connect_to(target) as client:
                return await work(client)
        except TimeoutError as error:
            raise Unreachable(
                f"no answer from {target.bootstrap} within {target.timeout_s:g} s; is the node "
                "running? --bootstrap names another address"
            ) from error
        except Unavailable as error:
            if "serves no timelines" in str(error):
                raise Unavailable(
                    f"{target.bootstrap} serves no timelines: timeline.enabled is false, or it is "
                    "a node of a cluster without timeline.store = 'postgres' and timeline.dsn; "
                    f"`{program()} cluster start` sets them where it finds a PostgreSQL, and says "
                    "why where it does not"
                ) from error
            if "no connection to" in str(error):
                raise Unreachable(str(error)) from error
            raise

    return asyncio.run(within())


def connect_to(target: Target) -> Dovetail:
    """A client of the node; inside `async with` it is connected. Raises `Unreachable`."""
    login = login_of(target)
    target.kafka().check()
    return connect(
        target.bootstrap,
        client_id="dovetail-cli",
        tls=login.tls,
        user=login.user,
        password=login.password,
        mechanism=login.mechanism,
    )


def login_of(target: Target) -> ClientLogin:
    """TLS and login of the settings, for a client of our own. Raises `InvalidSetting`."""
    try:
        return ClientLogin.of(target.security)
    except InvalidInput as error:
        raise InvalidSetting(
            f"{error} (client.tls_ca, client.tls_certificate, client.tls_key, client.mechanism)"
        ) from error
