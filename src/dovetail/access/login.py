"""Proving who one is: the SASL conversation of one connection.

    NEW --handshake--> CHOSEN --authenticate--> (SCRAM: one more) --> DONE with a principal
                          |                          |
                          +------ anything wrong ----+--> LoginFailed; the connection ends

SCRAM (RFC 5802) is `scramp`'s. A name that nobody has gets the same conversation as one that
somebody has, with a salt that is always the same for it, and fails at its end: who is a user here
cannot be found out. PLAIN sends the password itself, so it is offered over TLS alone.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dovetail.access.credentials import ROUNDS, Credential, Mechanism, fits
from dovetail.errors import DovetailError

PLAIN = "PLAIN"
#: Longest message of a conversation; names and passwords have 1,024 characters at most.
MESSAGE_BYTES_MAX = 8192

_SCRAM = {mechanism.title: mechanism for mechanism in Mechanism}

#: Names that nobody has get salts from this, the same for as long as the process lives.
_DISGUISE = secrets.token_bytes(32)

Credentials = Mapping[Mechanism, Credential]


class LoginFailed(DovetailError):
    """Who asks did not prove who it is."""

    retriable = False


class Login:
    """One conversation. `principal` is set when it has ended well."""

    def __init__(
        self, mechanisms: Collection[str], look_up: Callable[[str], Credentials | None]
    ) -> None:
        """`look_up` gives what is kept of a user's password."""
        self._mechanisms = mechanisms
        self._look_up = look_up
        self._mechanism: str | None = None
        self._server: Any = None
        self._name = ""
        self.principal: str | None = None

    @property
    def chosen(self) -> bool:
        """Whether there was a handshake, and the conversation goes on."""
        return self._mechanism is not None and self.principal is None

    def handshake(self, mechanism: str) -> bool:
        """Chooses how; False if it is not offered here."""
        if mechanism not in self._mechanisms:
            return False
        self._mechanism = mechanism
        self._server = None
        return True

    async def authenticate(self, message: bytes) -> bytes:
        """The next message of ours. Raises `LoginFailed`."""
        if not self.chosen:
            raise LoginFailed("no mechanism is chosen yet; send SaslHandshake first")
        if len(message) > MESSAGE_BYTES_MAX:
            raise LoginFailed(f"{len(message)} bytes; {MESSAGE_BYTES_MAX} are taken")
        try:
            text = message.decode()
        except UnicodeDecodeError as error:
            raise LoginFailed("the message is not text") from error
        if self._mechanism == PLAIN:
            await self._plain(text)
            return b""
        return self._scram(text).encode()

    async def _plain(self, text: str) -> None:
        parts = text.split("\0")
        if len(parts) != 3 or (parts[0] and parts[0] != parts[1]):
            raise LoginFailed("PLAIN takes a name and a password")
        _, name, password = parts
        known = self._look_up(name)
        mechanism, credential = next(iter((known or _nobody(name)).items()))
        fit = await asyncio.to_thread(fits, mechanism, credential, password)
        if known is None or not fit:
            raise LoginFailed("the name or the password is wrong")
        self.principal = name

    def _scram(self, text: str) -> str:
        from scramp import (  # type: ignore[import-untyped]
            ScramException,
            ScramMechanism,
        )

        assert self._mechanism is not None
        try:
            if self._server is None:
                mechanism = ScramMechanism(mechanism=self._mechanism)
                self._server = mechanism.make_server(self._information)
                self._server.set_client_first(text)
                return str(self._server.get_server_first())
            self._server.set_client_final(text)
            final = str(self._server.get_server_final())
        except ScramException as error:
            raise LoginFailed("the name or the password is wrong") from error
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            raise LoginFailed("the message is not a SCRAM message") from error
        self.principal = self._name
        return final

    def _information(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        assert self._mechanism is not None
        mechanism = _SCRAM[self._mechanism]
        self._name = name
        known = (self._look_up(name) or {}).get(mechanism) or _nobody(name)[mechanism]
        return known.salt, known.stored_key, known.server_key, known.rounds


def _nobody(name: str) -> dict[Mechanism, Credential]:
    """What a user who is not there would have; no password fits it."""
    salt = hmac.digest(_DISGUISE, name.encode(), "sha256")[:24]
    return {
        mechanism: Credential(
            salt,
            ROUNDS,
            secrets.token_bytes(hashlib.new(mechanism.digest).digest_size),
            secrets.token_bytes(hashlib.new(mechanism.digest).digest_size),
        )
        for mechanism in Mechanism
    }
