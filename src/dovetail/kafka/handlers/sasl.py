"""SaslHandshake and SaslAuthenticate: a client's login, in Kafka's messages."""

import asyncio

from dovetail.access import Authenticator, LoginFailed
from dovetail.background import later
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.logging import get_logger
from dovetail.wire import Connection

_log = get_logger("access")

#: A wrong password costs its sender this long, on each connection.
_WRONG_MS = 200

#: How long the answer to a failed login has to reach the client before the end.
_CLOSE_MS = 100

Sasl = m.SaslHandshakeRequest | m.SaslAuthenticateRequest


async def sasl(
    authenticator: Authenticator | None, connection: Connection, request: Sasl
) -> m.SaslHandshakeResponse | m.SaslAuthenticateResponse:
    """Either of the two requests; refused if logins are off."""
    if authenticator is None or not authenticator.mechanisms:
        return _nobody_logs_in(request)
    if isinstance(request, m.SaslHandshakeRequest):
        known = authenticator.begin(connection).handshake(request.mechanism)
        code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return m.SaslHandshakeResponse(error_code=code, mechanisms=authenticator.mechanisms)
    return await _authenticate(authenticator, connection, request)


def _nobody_logs_in(request: Sasl) -> m.SaslHandshakeResponse | m.SaslAuthenticateResponse:
    if isinstance(request, m.SaslHandshakeRequest):
        return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())
    return m.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="nobody logs in here; connect without SASL",
        auth_bytes=b"",
    )


async def _authenticate(
    authenticator: Authenticator, connection: Connection, request: m.SaslAuthenticateRequest
) -> m.SaslAuthenticateResponse:
    login = authenticator.login_of(connection)
    if not login.chosen:
        return m.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake comes first",
            auth_bytes=b"",
        )

    try:
        answer = await login.authenticate(bytes(request.auth_bytes))
        if login.principal is not None:
            authenticator.welcome(connection, login.principal)
    except LoginFailed as error:
        _log.warning("login failed", peer=connection.peer, reason=str(error))
        await asyncio.sleep(_WRONG_MS / 1000)
        later(_CLOSE_MS / 1000, connection.close, name="kafka/close-refused")
        return m.SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=f"login failed: {error}",
            auth_bytes=b"",
        )

    return m.SaslAuthenticateResponse(
        error_code=ErrorCode.NONE, error_message=None, auth_bytes=answer
    )
