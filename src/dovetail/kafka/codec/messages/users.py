"""DescribeUserScramCredentials and AlterUserScramCredentials: who can log in."""

from dataclasses import dataclass

from dovetail.kafka.codec.schema import Bytes, Int8, Int16, Int32, String


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequestUser:
    """A user by name."""

    name: String


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest:
    """Which users; null or none mean all."""

    users: tuple[DescribeUserScramCredentialsRequestUser, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponseCredential:
    """A way in which a user can log in."""

    mechanism: Int8
    iterations: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponseResult:
    """A user."""

    user: String
    error_code: Int16
    error_message: String | None = None
    credential_infos: tuple[DescribeUserScramCredentialsResponseCredential, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    """The users."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    results: tuple[DescribeUserScramCredentialsResponseResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequestDeletion:
    """A way to log in that ends."""

    name: String
    mechanism: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequestUpsertion:
    """A password, salted by the client."""

    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequest:
    """Passwords to set and to remove."""

    deletions: tuple[AlterUserScramCredentialsRequestDeletion, ...]
    upsertions: tuple[AlterUserScramCredentialsRequestUpsertion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResponseResult:
    """What became of a user."""

    user: String
    error_code: Int16
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResponse:
    """One result for each user."""

    throttle_time_ms: Int32 = 0
    results: tuple[AlterUserScramCredentialsResponseResult, ...]
