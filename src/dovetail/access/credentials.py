"""What is stored of a password (RFC 5802): salt, rounds and two keys derived from it.

They are enough to check a password or a proof of it, and not enough to log in with.
"""

import hashlib
import hmac
import secrets
from enum import IntEnum

import msgspec

from dovetail.errors import InvalidInput

#: Rounds for a new password: some milliseconds of a processor for each guess.
ROUNDS = 8192
#: Fewer are no protection; more would let anybody who tries to log in as PLAIN keep us busy.
ROUNDS_MIN = 4096
ROUNDS_MAX = 16384
#: Of a salt that we make; clients make others.
SALT_BYTES = 24
SALT_BYTES_MAX = 1024
#: Clients and our own side of SCRAM refuse shorter ones.
SALT_BYTES_MIN = 12
PASSWORD_MAX = 1024
#: Longest name of a user.
NAME_CHARACTERS_MAX = 200


class Mechanism(IntEnum):
    """Kafka's numbers of the two kinds of SCRAM."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def title(self) -> str:
        """As SASL calls it."""
        return "SCRAM-SHA-256" if self is Mechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """As hashlib calls it."""
        return "sha256" if self is Mechanism.SHA_256 else "sha512"


class Credential(msgspec.Struct, frozen=True):
    """Of one user and one mechanism."""

    salt: bytes
    rounds: int
    stored_key: bytes
    server_key: bytes


def check_user(name: str) -> None:
    """Raises `InvalidInput` for what cannot be a user's name."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidInput(f"a user's name has 1 to {NAME_CHARACTERS_MAX} printable characters")


def check_password(password: str) -> bytes:
    """The password as it is proved. Raises `InvalidInput`; no message shows any of it."""
    try:
        data = password.encode()
    except UnicodeEncodeError:
        # Its text holds the password, so it is no cause.
        raise InvalidInput("the password holds a lone surrogate, which has no encoding") from None
    if not 0 < len(password) <= PASSWORD_MAX or b"\0" in data:
        raise InvalidInput(f"a password has 1 to {PASSWORD_MAX} characters, and no NUL")
    return data


def make_credential(mechanism: Mechanism, password: str) -> Credential:
    """For a new password. Takes milliseconds."""
    check_password(password)
    salt = secrets.token_bytes(SALT_BYTES)
    salted = _salted(mechanism, password, salt, ROUNDS)
    return from_salted(mechanism, salted, salt=salt, rounds=ROUNDS)


def from_salted(mechanism: Mechanism, salted: bytes, *, salt: bytes, rounds: int) -> Credential:
    """For a password that a client has salted itself. Raises `InvalidInput`."""
    if not ROUNDS_MIN <= rounds <= ROUNDS_MAX:
        raise InvalidInput(f"{rounds} iterations are outside {ROUNDS_MIN} to {ROUNDS_MAX}")
    if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
        raise InvalidInput(
            f"a salt has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes, not {len(salt)}"
        )
    if len(salted) != hashlib.new(mechanism.digest).digest_size:
        raise InvalidInput(f"{len(salted)} bytes are not a password salted by {mechanism.title}")
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return Credential(
        salt=salt,
        rounds=rounds,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.digest),
    )


def fits(mechanism: Mechanism, credential: Credential, password: str) -> bool:
    """Whether this is the password. Takes milliseconds."""
    salted = _salted(mechanism, password, credential.salt, credential.rounds)
    found = from_salted(mechanism, salted, salt=credential.salt, rounds=credential.rounds)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def _salted(mechanism: Mechanism, password: str, salt: bytes, rounds: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, rounds)
