"""A client's login on a connection: SASL SCRAM, in the two requests that Kafka has for it.

Promise: after it the node knows who asks, and the client knows that the node knows the password.
The password does not leave this side. Raises `Forbidden` if the node does not let it in.
"""

from collections.abc import Awaitable, Callable

from dovetail.errors import Forbidden

MECHANISM = "SCRAM-SHA-512"

HANDSHAKE_KEY = 17
HANDSHAKE_VERSION = 1
AUTHENTICATE_KEY = 36
AUTHENTICATE_VERSION = 1

#: Sends the body of a request by its key and version; gives what is behind the correlation id.
Ask = Callable[[int, int, bytes], Awaitable[memoryview]]


async def log_in(ask: Ask, user: str, password: str) -> None:
    """The whole conversation."""
    from scramp import ScramClient, ScramException  # type: ignore[import-untyped]

    name = MECHANISM.encode()
    answer = await ask(HANDSHAKE_KEY, HANDSHAKE_VERSION, len(name).to_bytes(2, "big") + name)
    if int.from_bytes(answer[:2], "big", signed=True) != 0:
        raise _refused(f"the node does not offer {MECHANISM}; see security.login there")
    client = ScramClient([MECHANISM], user, password)
    try:
        client.set_server_first(await _authenticate(ask, client.get_client_first()))
        client.set_server_final(await _authenticate(ask, client.get_client_final()))
    except ScramException as error:
        raise _refused(f"the login of {user!r} failed: {error}") from error


async def _authenticate(ask: Ask, message: str) -> str:
    sent = message.encode()
    answer = await ask(AUTHENTICATE_KEY, AUTHENTICATE_VERSION, len(sent).to_bytes(4, "big") + sent)
    error = int.from_bytes(answer[:2], "big", signed=True)
    at = 4 + max(0, int.from_bytes(answer[2:4], "big", signed=True))
    if error != 0:
        raise _refused(bytes(answer[4:at]).decode(errors="replace") or f"error {error}")
    size = int.from_bytes(answer[at : at + 4], "big", signed=True)
    return bytes(answer[at + 4 : at + 4 + size]).decode(errors="replace")


def _refused(why: str) -> Forbidden:
    return Forbidden(why, kind="cluster")
