"""From a request to its handler and back: performs what an `Endpoint` declares.

    decode path, query, body → (a change: a line in the audit log) → handler → (its end) → answer

Input that does not fit its declared type is refused before the handler sees it. A change is
recorded before it begins and after it ends. A bug in a handler is answered as an internal error;
its details go to the log.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dovetail.console.desk import Desk
from dovetail.console.web.audit import AuditEntry
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.console.web.errors import HttpRefusal, Problem, encoded, problem_of, status_of
from dovetail.console.web.guard import Pass
from dovetail.console.web.query import decode_query
from dovetail.console.web.session import SessionCookie
from dovetail.console.web.signing_in import COOKIE
from dovetail.errors import DovetailError, InvalidInput, Uncertain
from dovetail.logging import get_logger

#: A body must be here within this time of its headers.
BODY_S_MAX = 10.0
#: What is written down of a body: names, counts, choices. The rest is too long for a line.
_DETAIL_CHARACTERS_MAX = 2_000
#: Fields that hold what people send to each other, or secrets.
_NEVER_WRITTEN = frozenset({"value", "body", "token", "headers"})

_log = get_logger("console")


def problem_response(error: DovetailError) -> Response:
    """The answer for an error."""
    headers = error.headers if isinstance(error, HttpRefusal) else {}
    return Response(
        encoded(problem_of(error)),
        status_code=int(status_of(error)),
        media_type="application/json",
        headers=headers,
    )


def defect_response() -> Response:
    """The answer for a defect of ours."""
    text = "the node met a defect while it answered; its log has the details"
    return Response(encoded(Problem("Defect", text, False)), 500, media_type="application/json")


async def dispatch(desk: Desk, endpoint: Endpoint, request: Request) -> Response:
    """The answer of an endpoint; raises nothing but what ends the connection."""
    try:
        asked = await _asked(endpoint, request)
        if endpoint.action is None:
            found = await endpoint.handler(desk, asked)
        else:
            found = await _changed(desk, endpoint, asked)
    except DovetailError as error:
        return problem_response(error)
    except ClientDisconnect:
        return Response(status_code=HTTPStatus.BAD_REQUEST)
    except Exception as error:  # noqa: BLE001 - one request must not end the server
        _log.exception("a request met a defect", path=request.url.path, error=repr(error))
        return defect_response()
    return _answer(endpoint, found, request)


def _answer(endpoint: Endpoint, found: object, request: Request) -> Response:
    if isinstance(found, SessionCookie):
        answer = Response(status_code=endpoint.status)
        answer.set_cookie(
            COOKIE,
            found.value or "",
            max_age=found.seconds if found.value else 0,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    if endpoint.answer is None:
        return Response(status_code=endpoint.status)
    return Response(msgspec.json.encode(found), endpoint.status, media_type="application/json")


async def _changed(desk: Desk, endpoint: Endpoint, asked: Asked[Any, Any]) -> object:
    """Runs a change between two lines of the audit log."""
    action = endpoint.action or ""
    entry = await desk.audit.begin(asked.caller, action, _target(asked), _detail(asked))
    try:
        found = await endpoint.handler(desk, asked)
    except asyncio.CancelledError:
        await asyncio.shield(desk.audit.end(entry, "unknown", "the caller went away"))
        raise
    except DovetailError as error:
        await desk.audit.end(entry, "failed" if error.retriable else "refused", str(error))
        raise
    except Exception as error:
        await desk.audit.end(entry, "failed", repr(error))
        raise

    await _end(desk, entry)
    return found


async def _end(desk: Desk, entry: AuditEntry) -> None:
    try:
        await desk.audit.end(entry, "done")
    except DovetailError as error:
        raise Uncertain(f"the change was made, but could not be recorded: {error}") from error


def _target(asked: Asked[Any, Any]) -> str:
    """What a change is about: the names in the path, or the first name in the body."""
    if asked.path:
        return "/".join(asked.path.values())
    for name in ("topic", "timeline", "name"):
        if isinstance(found := getattr(asked.body, name, None), str):
            return found
    return ""


def _detail(asked: Asked[Any, Any]) -> dict[str, Any]:
    if asked.body is None:
        return {}
    plain: dict[str, Any] = msgspec.to_builtins(asked.body)
    kept = {name: value for name, value in plain.items() if name not in _NEVER_WRITTEN}
    if len(msgspec.json.encode(kept)) > _DETAIL_CHARACTERS_MAX:
        return {"fields": sorted(plain), "note": "too long for the audit log"}
    return kept


async def _asked(endpoint: Endpoint, request: Request) -> Asked[Any, Any]:
    passed: Pass = request.scope["dovetail.pass"]
    query = decode_query(endpoint.query, request.query_params)
    body = None
    if endpoint.body is not None:
        body = await _body(endpoint, request)

    # A request without a body has one part, which is empty; behind it is the end of the connection.
    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return Asked(dict(request.path_params), query, body, passed.caller, gone)


async def _body(endpoint: Endpoint, request: Request) -> Any:
    """The body. Its size is checked before and while it is read. Raises `HttpRefusal`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpRefusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"a change must be JSON, not {kind[:50] or 'nothing'!r}; send "
            "Content-Type: application/json",
        )

    limit = endpoint.body_bytes_max
    too_large = HttpRefusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than the limit of {limit} bytes",
        headers={"connection": "close"},
    )
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limit:
        raise too_large

    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        raise HttpRefusal(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body was not complete within {BODY_S_MAX:g} s",
            headers={"connection": "close"},
        ) from error

    wanted = endpoint.body
    assert wanted is not None
    return _decoded(b"".join(parts), wanted)


def _decoded(data: bytes, kind: type) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise InvalidInput(f"{error}; fields are {fields}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
