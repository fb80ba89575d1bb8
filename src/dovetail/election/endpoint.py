"""The web server of a replica: the members' endpoint, health and metrics."""

from starlette.applications import Starlette

from dovetail.web import WebServer, serve_web

#: Requests served at once: a hundred members that ping, and a scrape.
REQUESTS_CONCURRENT_MAX = 200
#: How long answers under way are waited for at the end.
STOP_GRACE_S = 1

_HINT = (
    "choose another address with endpoint_host_and_port, or listen_host and listen_port behind a "
    "proxy"
)


async def serve(
    app: Starlette, host: str, port: int, *, certificate: str = "", key: str = ""
) -> WebServer:
    """Serves `app`; returns once it listens. Raises `Unavailable` if the address is taken."""
    return await serve_web(
        app,
        host,
        port,
        requests_concurrent_max=REQUESTS_CONCURRENT_MAX,
        stop_grace_s=STOP_GRACE_S,
        hint=_HINT,
        certificate=certificate,
        key=key,
    )
