"""Errors over HTTP: one shape, and a status for each of ours.

    InvalidInput 400, NotFound 404, Exists and Refused 409, Throttled 429,
    Unavailable and Uncertain 503

The caller sees the caller's own mistakes in full; a bug of ours shows as an internal error, and its
details go only to the log.
"""

from http import HTTPStatus

import msgspec
from msgspec import Struct

from dovetail.errors import (
    DovetailError,
    Exists,
    Forbidden,
    InvalidInput,
    NotFound,
    Refused,
    Throttled,
    Unavailable,
    Uncertain,
)

_STATUS_BY_CLASS: tuple[tuple[type[DovetailError], HTTPStatus], ...] = (
    (Forbidden, HTTPStatus.FORBIDDEN),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (NotFound, HTTPStatus.NOT_FOUND),
    (Exists, HTTPStatus.CONFLICT),
    (Refused, HTTPStatus.CONFLICT),
    (Throttled, HTTPStatus.TOO_MANY_REQUESTS),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (Uncertain, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Problem(Struct, frozen=True):
    """What happened, why, what to do; `kind` is the class of the error."""

    kind: str
    message: str
    retriable: bool


class ProblemAnswer(Struct, frozen=True):
    """The body of every answer with a status from 400 on."""

    error: Problem


class HttpRefusal(DovetailError):
    """A request that is refused before anybody looks at what it asks."""

    def __init__(
        self, status: HTTPStatus, message: str, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def status_of(error: DovetailError) -> HTTPStatus:
    """The status that says whose fault it is."""
    if isinstance(error, HttpRefusal):
        return error.status
    for kind, status in _STATUS_BY_CLASS:
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem_of(error: DovetailError) -> Problem:
    """The error as it travels."""
    kind = error.status.phrase.replace(" ", "") if isinstance(error, HttpRefusal) else None
    return Problem(kind or type(error).__name__, str(error), error.retriable)


def encoded(problem: Problem) -> bytes:
    """The body of an answer that failed."""
    return msgspec.json.encode(ProblemAnswer(problem))
