"""Users that can log in with a password, by Kafka's SCRAM credentials."""

from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined] # Its exports are implicit.
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from msgspec import Struct

from dovetail.access.credentials import ROUNDS, check_password, check_user
from dovetail.admin.kafka import Kafka

_MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


class User(Struct, frozen=True):
    """A user and the mechanisms by which it can log in."""

    user: str
    mechanisms: list[str]


def list_users(kafka: Kafka) -> list[User]:
    """All users by name. Raises `Unreachable`, `Refused`."""
    found = kafka.ask("listing users", lambda admin: {"all": _described(admin)})["all"]
    return [User(name, _mechanisms(found[name])) for name in sorted(found)]


def _described(admin: AdminClient, users: list[str] | None = None) -> Any:
    """One future for all users; for named ones a future each."""
    return admin.describe_user_scram_credentials(users)


def _mechanisms(described: Any) -> list[str]:
    return sorted(
        info.mechanism.name.replace("_", "-") for info in described.scram_credential_infos
    )


def set_password(kafka: Kafka, user: str, password: str) -> None:
    """Creates the user, or changes its password; only salted keys travel.

    Raises `InvalidInput`, `Uncertain`.
    """
    check_user(user)
    secret = check_password(password)
    changes = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, ROUNDS), secret)
        for mechanism in _MECHANISMS
    ]
    _alter(kafka, f"setting the password of {user}", changes)


def delete_user(kafka: Kafka, user: str) -> None:
    """Deletes all that the user can log in with. Raises `NotFound`, `Uncertain`."""
    check_user(user)
    doing = f"deleting user {user}"
    known = kafka.ask(doing, lambda admin: _described(admin, [user]))[user]
    changes = [
        UserScramCredentialDeletion(user, ScramMechanism(info.mechanism))
        for info in known.scram_credential_infos
    ]
    _alter(kafka, doing, changes)


def _alter(kafka: Kafka, doing: str, changes: list[Any]) -> None:
    kafka.ask(doing, lambda admin: admin.alter_user_scram_credentials(changes), changes=True)
