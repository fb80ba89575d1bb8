"""Messages between members over HTTP, signed with a shared secret.

One POST is one message, and its response the answer. The transport refuses a message that is
unsigned, too large, meant for another member or seen before, and logs a few such lines a second.
The same server serves the `routes` it is given, such as `/health` and `/metrics`, which need no
signature.
"""

import asyncio
import ssl
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dovetail.clock import Clock, SystemClock
from dovetail.election.election import Identity
from dovetail.election.identifiers import MemberName
from dovetail.election.messages import MESSAGE_BYTES_MAX, Message
from dovetail.election.settings import ElectionSettings
from dovetail.election.signature import Sealer
from dovetail.election.transport import Directory, Receive
from dovetail.errors import DovetailError, InvalidSetting, ProtocolViolation, Refused, Unavailable
from dovetail.logging import RateLimitedLog, get_logger
from dovetail.web import WebServer, serve_web

SIGNATURE_HEADER = "x-dovetail-signature"
#: Connections at once: a hundred members that ping, and a scrape.
CONNECTIONS_MAX = 200
#: How long answers under way are waited for at the end.
STOP_GRACE_S = 1
#: A message and its envelope.
BODY_BYTES_MAX = MESSAGE_BYTES_MAX + 4 * 1024


class HttpSite:
    """The listener of the members of this process; each has an `endpoint_path` of its own."""

    def __init__(self) -> None:
        self._app = Starlette()
        self._server: WebServer | None = None
        self._changing = asyncio.Lock()

    async def open(self, settings: ElectionSettings, routes: Sequence[BaseRoute]) -> None:
        """Serves these too. Raises `Unavailable` if the address cannot be taken."""
        async with self._changing:
            host, port = settings.listen_address
            if self._server is None:
                self._server = await serve_web(
                    self._app,
                    host,
                    port,
                    connections_max=CONNECTIONS_MAX,
                    stop_grace_s=STOP_GRACE_S,
                    hint="choose another address with endpoint_host_and_port, or listen_host and "
                    "listen_port behind a proxy",
                    certificate=settings.certificate_path,
                    key=settings.key_path,
                )
            self._app.router.routes.extend(routes)

    async def close(self, routes: Sequence[BaseRoute]) -> None:
        """Serves these no more; it ends with the last of them."""
        async with self._changing:
            left = [one for one in self._app.router.routes if one not in routes]
            self._app.router.routes[:] = left
            if not left and self._server is not None:
                server, self._server = self._server, None
                await server.stop()


class HttpTransport:
    """The transport of a replica; `routes` are served beside the endpoint."""

    def __init__(
        self,
        settings: ElectionSettings,
        *,
        routes: Sequence[BaseRoute] = (),
        site: HttpSite | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`site` is where other members of this process listen; by default it is alone."""
        settings.check()
        settings.check_secret()
        self._settings = settings
        route = Route(settings.endpoint_path, self._on_request, methods=["POST"])
        self._site, self._routes = site or HttpSite(), [route, *routes]
        self._clock = clock or SystemClock()
        self._log = RateLimitedLog(get_logger("election"), self._clock)
        self._sealer: Sealer | None = None
        self._receive: Receive | None = None
        self._open = False

    async def start(self, me: Identity, receive: Receive, directory: Directory) -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                "the HTTP transport needs httpx: install dovetail with its extra `stream` "
                "(pip install 'dovetailmq[stream]')"
            ) from error

        self._sealer = Sealer(me, self._settings.secret, directory)
        self._receive = receive
        self._client = httpx.AsyncClient(
            timeout=self._settings.timeout_ms / 1000 / 2,
            trust_env=False,
            verify=self._authority(),
        )
        self._client_errors = (httpx.HTTPError, httpx.InvalidURL)

        await self._site.open(self._settings, self._routes)
        self._open = True

    async def send(self, to: MemberName, message: Message) -> Message | None:
        assert self._sealer is not None
        try:
            body, signature = self._sealer.seal(to, message)
            response = await self._client.post(
                to, content=body, headers={SIGNATURE_HEADER: signature.decode()}
            )
        except Refused as error:
            raise Unavailable(str(error)) from error
        except self._client_errors as error:
            raise Unavailable(f"{to} does not answer: {type(error).__name__} {error}") from error
        if response.status_code != 200:
            raise Unavailable(f"{to} refused a message: {response.status_code} {response.text}")

        answered = response.headers.get(SIGNATURE_HEADER, "").encode()
        try:
            return self._sealer.open_answer(response.content, answered, signature)
        except DovetailError as error:
            raise Unavailable(f"cannot trust the answer of {to}: {error}") from error

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._site.close(self._routes)
            await self._client.aclose()

    def _authority(self) -> ssl.SSLContext | bool:
        if self._settings.endpoint_scheme == "http":
            # Loading the authorities of the world takes a tenth of a second, for nothing.
            return False
        return ssl.create_default_context(cafile=self._settings.authority_path or None)

    async def _on_request(self, request: Request) -> Response:
        assert self._sealer is not None
        assert self._receive is not None
        signature = request.headers.get(SIGNATURE_HEADER, "").encode()
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return Response("too large", status_code=413)

        try:
            message = self._sealer.open(bytes(body), signature)
        except (Refused, ProtocolViolation) as error:
            self._log.report("refused", "message refused", reason=str(error))
            return Response(str(error), status_code=403)

        answer = await self._receive(message)
        content, signed = self._sealer.seal_answer(answer, signature)
        return Response(content, headers={SIGNATURE_HEADER: signed.decode()})
