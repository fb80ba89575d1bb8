"""Health, metrics and pages, over a real port, of a node that has not started yet."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter

from dovetail import web
from dovetail.console import Console, serve_http
from dovetail.console.web.guard import Receive, Scope, Send
from dovetail.console.web.http import CONNECTIONS_MAX
from dovetail.errors import InvalidSetting, Unavailable
from dovetail.settings import HttpSettings, Settings, load_settings
from dovetail.web import WebServer

#: Names that no file can have, and one that is there but is no page's file.
ODD = ("/static/%00.js", f"/static/{'x' * 3000}.js", "/static/..%2fhttp.py", "/static/")
TOKEN = "correct-horse-battery"


class Status:
    """A node that is not there yet: nothing but its health."""

    insight = None

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.is_live = True
        self.reasons: list[str] = []
        self.bad: list[str] = []

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> tuple[bool, list[str]]:
        return not self.reasons, self.reasons

    def unwell(self) -> list[str]:
        return self.bad

    def cluster(self) -> None:
        return None


def settings_of(folder: Path, **http: object) -> Settings:
    return Settings.model_validate({"node": {"data_dir": folder}, "http": {"port": 0, **http}})


async def started(status: Status, settings: Settings) -> WebServer:
    return await serve_http(Console(status, settings), settings.http)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Status, httpx.AsyncClient]]:
    status = Status()
    server = await started(status, settings_of(tmp_path))
    async with httpx.AsyncClient(base_url=server.url) as client:
        yield status, client
    await server.stop()


async def test_probes_follow_the_node(served: tuple[Status, httpx.AsyncClient]) -> None:
    """U6, B18: `/livez` and `/readyz` are 200, or 503 with the reasons; what is unwell alone is
    named, and closes nothing."""
    status, client = served
    assert (await client.get("/livez")).json() == {"live": True}
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "reasons": [], "unwell": []}
    status.bad = ["timelines: 'bad' cannot be opened"]
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "reasons": [], "unwell": status.bad}
    status.bad = []
    status.is_live, status.reasons = False, ["disk full: 3 MiB free"]
    assert (await client.get("/livez")).status_code == 503
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["disk full: 3 MiB free"]


async def test_metrics_and_pages(served: tuple[Status, httpx.AsyncClient]) -> None:
    """U6: `/metrics` is what Prometheus reads; page paths get one document, other paths none."""
    status, client = served
    Counter("dovetail_requests", "Requests.", registry=status.registry).inc(3)
    metrics = await client.get("/metrics")
    assert "dovetail_requests_total 3.0" in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain")
    for path in ("/", "/topics/orders.dead", "/sign-in"):
        page = await client.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
    for path in ("/nothing", "/static/../http.py", "/static/%2e%2e/http.py", "/v1/nothing", *ODD):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["kind"] == "NotFound"
    answer = await client.post("/livez")
    assert answer.status_code == 405
    assert "/docs" in answer.json()["error"]["message"]


async def test_static_files_are_revalidated(served: tuple[Status, httpx.AsyncClient]) -> None:
    """U5: a page is not sent again when it has not changed."""
    _, client = served
    first = await client.get("/docs/style.css")
    assert first.headers["content-type"].startswith("text/css")
    page = await client.get("/")
    if "etag" in page.headers:
        again = await client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert again.status_code == 304
        assert not again.content


async def test_what_asks_early_is_told_so(served: tuple[Status, httpx.AsyncClient]) -> None:
    """U7: while the node starts, the API says that, and the overview says what is known."""
    _, client = served
    answer = await client.get("/v1/topics")
    assert answer.status_code == 503
    assert answer.json()["error"]["retriable"] is True
    assert "/readyz" in answer.json()["error"]["message"]
    overview = (await client.get("/v1/overview")).json()
    assert overview["node"]["ready"] is True
    assert overview["totals"]["topics"] is None
    assert (await client.get("/v1/cluster")).status_code == 404


async def test_every_answer_has_strict_headers(served: tuple[Status, httpx.AsyncClient]) -> None:
    """R4: pages, data, errors and refusals alike carry the content policy and its companions."""
    _, client = served
    answers = [
        await client.get("/"),
        await client.get("/docs"),
        await client.get("/v1/overview"),
        await client.get("/v1/topics"),
        await client.get("/nothing"),
        await client.get("/livez"),
        await client.get("/v1/overview", headers={"host": "evil.example"}),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_the_docs_page_loads_nothing_from_elsewhere(
    served: tuple[Status, httpx.AsyncClient],
) -> None:
    """U5: the page of the API has no script, no inline style and no outside address."""
    _, client = served
    page = (await client.get("/docs")).text
    assert "<script" not in page
    assert " style=" not in page
    assert "<style" not in page
    assert "://" not in page
    assert "/v1/topics/{topic}/messages" in page


async def test_a_port_in_use_is_an_error_that_says_so(tmp_path: Path) -> None:
    """U7: the message names the address and the settings that change it."""
    server = await started(Status(), settings_of(tmp_path))
    try:
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{server.port}.*http\.port"):
            await started(Status(), settings_of(tmp_path, port=server.port))
    finally:
        await server.stop()


async def test_stop_frees_the_port_and_leaves_signals_alone(tmp_path: Path) -> None:
    """U2: the process keeps its own signal handlers, and a stopped server is gone."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    server = await started(Status(), settings_of(tmp_path))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    await server.stop()
    await server.stop()
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", server.port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "broker.example"])
async def test_without_a_token_only_this_machine_is_served(tmp_path: Path, host: str) -> None:
    """R4: an address that others reach is refused before it is taken, and the text says why."""
    with pytest.raises(InvalidSetting, match=r"http\.token.*http\.host = 127\.0\.0\.1"):
        await started(Status(), settings_of(tmp_path, host=host))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_addresses_of_this_machine_need_no_token(host: str) -> None:
    """R4: loopback in any spelling."""
    assert HttpSettings(host=host).is_loopback


async def test_with_a_token_every_address_may_be_served(tmp_path: Path) -> None:
    """R4: authentication opens the door to the network."""
    server = await started(Status(), settings_of(tmp_path, host="0.0.0.0", token=TOKEN))
    try:
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/v1/overview")).status_code == 401
            assert (await client.get("/readyz")).status_code == 200
    finally:
        await server.stop()


def test_bad_tokens_are_refused_and_not_told(tmp_path: Path) -> None:
    """U7, R4: too short, with spaces, in a file that is none; the value stays out of the text."""
    with pytest.raises(InvalidSetting, match="16 to 1024") as caught:
        load_settings(environment={"DOVETAIL_HTTP_TOKEN": "hunter2"}, folder=tmp_path)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="not both"):
        HttpSettings(token=TOKEN, token_file="/somewhere")
    with pytest.raises(InvalidSetting, match="No such file"):
        HttpSettings(token_file=str(tmp_path / "none")).secret()
    (tmp_path / "token").write_text(f"{TOKEN}\nsecond line\n")
    assert HttpSettings(token_file=str(tmp_path / "token")).secret() == TOKEN


async def test_silent_connections_keep_no_probe_out(tmp_path: Path) -> None:
    """R7: more of them than there may be connections; the longest silent ones make room."""
    server = await started(Status(), settings_of(tmp_path))
    before = psutil.Process().num_fds()
    silent = [
        socket.create_connection((server.host, server.port)) for _ in range(CONNECTIONS_MAX + 50)
    ]
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/livez")).status_code == 200
        at_server = psutil.Process().num_fds() - before - len(silent) - 1
        assert at_server <= CONNECTIONS_MAX
    for one in silent:
        one.close()
    await server.stop()


#: What a client begins with, and does not end.
HALVES = (
    b"",
    b"GET /livez HTTP/1.1\r\nHost: local",
    b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n{",
    b"\x16\x03\x01",
)


async def test_a_request_that_does_not_end_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: silence, half a header, half a body, half a handshake; a slow answer is no such thing."""
    monkeypatch.setattr(web, "TURN_S_MAX", 0.3)
    monkeypatch.setattr(web, "_SWEEP_S", 0.05)
    status, answering = Status(), asyncio.Event()
    settings = settings_of(tmp_path, token=TOKEN)
    console = Console(status, settings)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await answering.wait()
        await console(scope, receive, send)

    server = await serve_http(slow, settings.http)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        answer = asyncio.create_task(client.get("/slow"))
        for half in HALVES:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(half)
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
        answering.set()
        assert (await answer).status_code == 404
    await server.stop()
