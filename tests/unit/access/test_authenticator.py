"""Who is at the other end of a connection, while users change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]

from dovetail.access import AccessRegistry, Authenticator, Guard, LoginFailed, make_credential
from dovetail.access.credentials import Mechanism
from dovetail.access.registry import User
from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.wire import ByteBudget, Connection, Limits

HOW = "SCRAM-SHA-256"
FIRST, SECOND = (
    {Mechanism.SHA_256: make_credential(Mechanism.SHA_256, password)} for password in ("one", "two")
)


#: Nothing is sent on these connections, and nothing is judged.
UNUSED: Any = None


def connection() -> Connection:
    made = Connection(UNUSED, Limits(1, 1, 1, 1), ByteBudget(1), UNUSED, memoryview(bytearray(1)))
    made.stranger = True
    return made


@pytest.mark.parametrize(
    "change",
    [lambda user: SECOND, lambda user: {}],
    ids=["another password", "the user is removed"],
)
async def test_a_login_under_way_does_not_outlive_its_password(
    tmp_path: Path, change: Callable[[User], User]
) -> None:
    """R4: one that was begun before the password was changed, and ends after it, opens nothing."""
    async with await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock()) as store:
        registry = AccessRegistry(store, on_change=lambda: None)
        authenticator = Authenticator(
            registry,
            Guard(UNUSED, UNUSED, ()),
            mechanisms=(HOW,),
            certificates=False,
            nodes=(),
        )
        await registry.start()
        await registry.change_user("alice", lambda user: FIRST)

        for changed in (False, True):
            client, here = ScramClient([HOW], "alice", "one"), connection()
            login = authenticator.begin(here)
            login.handshake(HOW)
            first = await login.authenticate(client.get_client_first().encode())
            client.set_server_first(first.decode())
            if changed:
                await registry.change_user("alice", change)
            await login.authenticate(client.get_client_final().encode())
            assert login.principal == "alice"
            if changed:
                with pytest.raises(LoginFailed):
                    authenticator.welcome(here, "alice")
            else:
                authenticator.welcome(here, "alice")
            assert (authenticator.access_of(here) is None) == changed
            assert here.stranger == changed
        await registry.stop()
