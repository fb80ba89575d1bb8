"""The guard: which requests pass, and which headers every answer has.

    request for                         Host    signed in   not cross-site
    /livez, /readyz                      -         -             -
    /metrics                            (x)       (x)            -        (x): not if metrics_open
    pages, /static, /docs, the document  x         -             -
    /v1/session                          x         -             x
    /v1/...                              x         x             x

*Host*: a page of another site can have its own name resolve to this machine, and would then be the
same origin (DNS rebinding). So the name must be one of ours; a numeric address cannot be rebound,
and a request with the token in a header does not come from such a page. *Cross-site*: a page of
another site can send a request here with the browser's cookie; browsers mark it (`Origin`,
`Sec-Fetch-Site`), and changes must be JSON, which a form cannot send. Programs send neither header.

The guard decides by headers alone; no body is read before a request has passed.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from dovetail.addresses import parse_address
from dovetail.clock import Clock
from dovetail.console.web.endpoint import Caller
from dovetail.console.web.errors import HttpRefusal, encoded, problem_of
from dovetail.console.web.signing_in import COOKIE, SignIn
from dovetail.errors import InvalidInput
from dovetail.settings import HttpSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Nothing inline, nothing from elsewhere, in no frame.
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
#: As they are sent, with each answer and with those of the API.
_RAW_HEADERS = tuple((name.encode(), value.encode()) for name, value in _HEADERS.items())
_API_HEADERS = (*_RAW_HEADERS, (b"cache-control", b"no-store"))
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PROBES = frozenset({"/livez", "/readyz"})
_OPEN_IN_API = frozenset({"/v1/session", "/v1/openapi.json"})


@dataclass(frozen=True, slots=True)
class Pass:
    """A request that may go on, and who sent it."""

    caller: Caller
    signed_in: bool


class Guard:
    """Lets requests in or refuses them; wraps the application."""

    def __init__(self, app: AsgiApp, settings: HttpSettings, sign_in: SignIn, clock: Clock) -> None:
        self._app = app
        self._settings = settings
        self._sign_in = sign_in
        self._clock = clock
        own = {"localhost", socket.gethostname().lower(), settings.host.lower()}
        self._names = frozenset(own) | settings.host_names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                raw = message.setdefault("headers", [])
                given = {name.lower() for name, _ in raw}
                wanted = _API_HEADERS if scope["path"].startswith("/v1/") else _RAW_HEADERS
                raw += [(name, value) for name, value in wanted if name not in given]
            await send(message)

        try:
            passed = self.judge(scope)
        except HttpRefusal as refusal:
            await _refuse(refusal, send_guarded)
            return
        scope["dovetail.pass"] = passed
        await self._app(scope, receive, send_guarded)

    def judge(self, scope: Scope) -> Pass:
        """Who asks. Raises `HttpRefusal`."""
        headers = Headers(scope=scope)
        path: str = scope["path"]
        client = scope.get("client")
        address = client[0] if client else "unknown"
        who = self._who(headers)
        signed_in = who is not None or not self._sign_in.required
        passed = Pass(Caller(who or "anonymous", address), signed_in)

        if path in _PROBES or (path == "/metrics" and self._settings.metrics_open):
            return passed
        if who != "token":
            self._check_host(headers)
        if path.startswith("/v1/"):
            _check_same_site(headers, scope["method"], scope["scheme"])

        private = path == "/metrics" or (path.startswith("/v1/") and path not in _OPEN_IN_API)
        if private and not signed_in and _token_of(headers):
            raise self._sign_in.refuse(address, now_ms=self._clock.monotonic_ms())
        if private and not signed_in:
            raise HttpRefusal(
                HTTPStatus.UNAUTHORIZED,
                "sign in first: send the token of this node (http.token) as "
                "'Authorization: Bearer TOKEN', or sign in on the page",
                headers={"www-authenticate": "Bearer"},
            )
        return passed

    def _who(self, headers: Headers) -> str | None:
        if self._sign_in.is_token(_token_of(headers)):
            return "token"
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if cookie and self._sign_in.is_sealed(cookie, now_s=self._clock.wall_ms() // 1000):
            return "session"
        return None

    def _check_host(self, headers: Headers) -> None:
        given = headers.get("host", "")
        name = _name_of(given).lower()
        if name in self._names or "*" in self._names or _is_address(name):
            return
        raise HttpRefusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this node does not serve the host name {given[:100]!r}; if it should, add it to "
            "http.allowed_hosts",
        )


def _token_of(headers: Headers) -> str:
    """The token that came in a header; empty without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_same_site(headers: Headers, method: str, scheme: str) -> None:
    site = headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise HttpRefusal(HTTPStatus.FORBIDDEN, f"a {site} page may not call this API")
    origin = headers.get("origin")
    if origin is None or method in _SAFE_METHODS:
        return
    if origin.lower() != f"{scheme}://{headers.get('host', '')}".lower():
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN, f"a page of {origin[:100]} may not change anything here"
        )


def _name_of(host: str) -> str:
    """The name in a Host header, without its port; empty for what is neither name nor address."""
    try:
        return parse_address(host, port_default=80).host
    except InvalidInput:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(refusal: HttpRefusal, send: Send) -> None:
    body = encoded(problem_of(refusal))
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= refusal.headers
    # What was not read must not be taken for the next request.
    headers["connection"] = "close"
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(refusal.status), "headers": raw})
    await send({"type": "http.response.body", "body": body})
