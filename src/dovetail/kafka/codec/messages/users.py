"""DescribeUserScramCredentials and AlterUserScramCredentials: users and their passwords."""

from dovetail.kafka.codec.schema import Bytes, Int8, Int16, Int32, String, message


@message
class DescribeUserScramCredentialsRequestUser:
    """A user by name."""

    name: String


@message
class DescribeUserScramCredentialsRequest:
    """Which users; null or none mean all."""

    users: tuple[DescribeUserScramCredentialsRequestUser, ...] | None


@message
class DescribeUserScramCredentialsResponseCredential:
    """A way in which a user can log in."""

    mechanism: Int8
    iterations: Int32


@message
class DescribeUserScramCredentialsResponseResult:
    """A user."""

    user: String
    error_code: Int16
    error_message: String | None = None
    credential_infos: tuple[DescribeUserScramCredentialsResponseCredential, ...]


@message
class DescribeUserScramCredentialsResponse:
    """The users."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    results: tuple[DescribeUserScramCredentialsResponseResult, ...]


@message
class AlterUserScramCredentialsRequestDeletion:
    """A way to log in that ends."""

    name: String
    mechanism: Int8


@message
class AlterUserScramCredentialsRequestUpsertion:
    """A password, salted by the client."""

    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


@message
class AlterUserScramCredentialsRequest:
    """Passwords to set and to remove."""

    deletions: tuple[AlterUserScramCredentialsRequestDeletion, ...]
    upsertions: tuple[AlterUserScramCredentialsRequestUpsertion, ...]


@message
class AlterUserScramCredentialsResponseResult:
    """What became of a user."""

    user: String
    error_code: Int16
    error_message: String | None = None


@message
class AlterUserScramCredentialsResponse:
    """One result for each user."""

    throttle_time_ms: Int32 = 0
    results: tuple[AlterUserScramCredentialsResponseResult, ...]
