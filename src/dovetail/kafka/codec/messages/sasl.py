"""SaslHandshake and SaslAuthenticate: a client's login."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bytes, Int16, Int64, String, Wire, message


@message
class SaslHandshakeRequest:
    """How the client wants to prove it."""

    mechanism: String


@message
class SaslHandshakeResponse:
    """Whether that is offered, and what is."""

    error_code: Int16
    mechanisms: tuple[String, ...]


@message
class SaslAuthenticateRequest:
    """The client's next message."""

    auth_bytes: Bytes


@message
class SaslAuthenticateResponse:
    """The server's next message, or why there is none."""

    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Wire(since=1)] = 0
