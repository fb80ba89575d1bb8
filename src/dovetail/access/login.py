"""Proves an identity: the SASL conversation of one connection.

    NEW --handshake--> CHOSEN --authenticate--> (SCRAM: one more) --> DONE with a principal
                          |                          |
                          +------ anything wrong ----+--> LoginFailed; the connection ends

SCRAM (RFC 5802) is `scramp`'s. An unknown name gets the same conversation as a known one, with a
salt that is always the same for it and looks like others, and fails at its end: nobody can find out
which users exist. PLAIN sends the password itself, so it is offered over TLS alone.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dovetail.access.credentials import ROUNDS, SALT_BYTES, Credential, Mechanism, fits
from dovetail.errors import DovetailError

PLAIN = "PLAIN"
#: Longest message of a conversation; names and passwords have 1,024 characters at most.
MESSAGE_BYTES_MAX = 8192

_SCRAM = {mechanism.title: mechanism for mechanism in Mechanism}

#: Names that nobody has get salts from this, the same for as long as the process lives.
_DISGUISE = secrets.token_bytes(32)

#: Salts of Kafka's tools are made of these.
_LETTERS = b"0123456789abcdefghijklmnopqrstuvwxyz"

Credentials = Mapping[Mechanism, Credential]


class LoginFailed(DovetailError):
    """Who asks did not prove who it is."""

    retriable = False


class Login:
    """One conversation. `principal` is set when it has ended well."""

    def __init__(
        self,
        mechanisms: Collection[str],
        look_up: Callable[[str], Credentials | None],
        users: Callable[[], Iterable[Credentials]] = tuple,
    ) -> None:
        """`look_up` gives what is kept of a user's password, `users` what is kept of all."""
        self._mechanisms = mechanisms
        self._look_up = look_up
        self._users = users
        self._mechanism: str | None = None
        self._server: Any = None
        self._name = ""
        #: What was kept of the user's password when the conversation asked for it.
        self.kept: Credentials | None = None
        self.principal: str | None = None

    @property
    def chosen(self) -> bool:
        """Whether there was a handshake, and the conversation continues."""
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
            raise LoginFailed("no mechanism was chosen; send SaslHandshake first")
        if len(message) > MESSAGE_BYTES_MAX:
            raise LoginFailed(
                f"the message has {len(message)} bytes, at most {MESSAGE_BYTES_MAX} are allowed"
            )
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
            raise LoginFailed("PLAIN needs a user name and a password")
        _, name, password = parts
        known = self.kept = self._look_up(name)
        mechanism, credential = next(iter((known or self._nobody(name)).items()))
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
        self._name, self.kept = name, self._look_up(name)
        known = (self.kept or {}).get(mechanism) or self._nobody(name)[mechanism]
        return known.salt, known.stored_key, known.server_key, known.rounds

    def _nobody(self, name: str) -> dict[Mechanism, Credential]:
        """A credential for an unknown user; no password fits it."""
        kept = [user for user in self._users() if user]
        return {mechanism: _disguised(name, mechanism, kept) for mechanism in Mechanism}


def _disguised(name: str, mechanism: Mechanism, users: Iterable[Credentials]) -> Credential:
    """A credential that looks like one of those that are kept.

    Clients salt passwords too: Kafka's tools take 4,096 rounds and a salt of about 26 letters and
    digits. So each name gets the looks of some credential, always the same while those looks exist.
    """
    looks = {(SALT_BYTES, ROUNDS, False)}
    for user in users:
        if (kept := user.get(mechanism)) is not None:
            looks.add((len(kept.salt), kept.rounds, kept.salt.isalnum()))
    size, rounds, plain = max(looks, key=lambda look: _secret(f"{look} {name}"))

    salt = b"".join(_secret(f"{part} {name}") for part in range(size // 64 + 1))[:size]
    if plain:
        salt = bytes(_LETTERS[byte % len(_LETTERS)] for byte in salt)
    keys = [secrets.token_bytes(hashlib.new(mechanism.digest).digest_size) for _ in range(2)]
    return Credential(salt, rounds, *keys)


def _secret(text: str) -> bytes:
    return hmac.digest(_DISGUISE, text.encode(), "sha512")
