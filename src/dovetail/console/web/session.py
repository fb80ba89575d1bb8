"""Signing in and out over HTTP, and the audit log.

Signing in is audited; a failure goes to the node's log alone. Otherwise strangers could fill the
audit log until nothing else is in it.
"""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail import __version__
from dovetail.console.desk import Desk
from dovetail.console.web.audit import AuditPage, AuditQuery
from dovetail.console.web.endpoint import Asked, Caller, Endpoint
from dovetail.console.web.signing_in import SESSION_S
from dovetail.settings.http import TOKEN_CHARACTERS_MAX


class SessionShown(Struct, frozen=True):
    """Whether a token is needed, and whether this caller has shown it."""

    required: bool
    signed_in: bool
    version: str
    node: str


class SessionNew(Struct, frozen=True, forbid_unknown_fields=True):
    """The token of the node (`http.token`)."""

    token: Annotated[str, Meta(max_length=TOKEN_CHARACTERS_MAX)]


class SessionCookie(Struct, frozen=True):
    """What a browser keeps; None takes it away."""

    value: str | None
    seconds: int = SESSION_S


async def show_session(desk: Desk, asked: Asked[None, None]) -> SessionShown:
    """Open to everybody."""
    required = desk.sign_in.required
    signed_in = not required or asked.caller.who != "anonymous"
    return SessionShown(required, signed_in, __version__, desk.settings.node.name)


async def sign_in(desk: Desk, asked: Asked[None, SessionNew]) -> SessionCookie:
    """Gives a cookie for browsers. Programs send the token with every request instead."""
    if desk.sign_in.required and not desk.sign_in.is_token(asked.body.token):
        raise desk.sign_in.refuse(asked.caller.address, now_ms=desk.clock.monotonic_ms())
    await _note(desk, Caller("session", asked.caller.address), "session.create")
    return SessionCookie(desk.sign_in.seal(now_s=desk.clock.wall_ms() // 1000))


async def sign_out(desk: Desk, asked: Asked[None, None]) -> SessionCookie:
    """Takes the cookie away from this browser."""
    if asked.caller.who == "session":
        await _note(desk, asked.caller, "session.delete")
    return SessionCookie(None)


async def _note(desk: Desk, caller: Caller, action: str) -> None:
    entry = await desk.audit.begin(caller, action, "", {})
    await desk.audit.end(entry, "done")


async def show_audit(desk: Desk, asked: Asked[AuditQuery, None]) -> AuditPage:
    """Changes that were made through this node, newest first. Bodies and tokens are not in it."""
    return await desk.audit.page(limit=asked.query.limit, before=asked.query.before)


ENDPOINTS = (
    Endpoint("GET", "/v1/session", show_session, "Who am I", SessionShown),
    Endpoint("POST", "/v1/session", sign_in, "Sign in", body=SessionNew, status=204),
    Endpoint("DELETE", "/v1/session", sign_out, "Sign out", status=204),
    Endpoint("GET", "/v1/audit", show_audit, "Who changed what", AuditPage, query=AuditQuery),
)
