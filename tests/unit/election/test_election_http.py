"""The HTTP transport on real sockets: signed, bounded, and with health beside it."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from tests.etcd_server import free_ports

from dovetail.election import ElectionSettings, HttpSite, HttpTransport, MemberName, Term
from dovetail.election.election import Identity
from dovetail.election.http_transport import BODY_BYTES_MAX, SIGNATURE_HEADER
from dovetail.election.identifiers import Incarnation
from dovetail.election.messages import Message, PingAnswer, Resign
from dovetail.errors import InvalidSetting, Unavailable
from dovetail.stream.health import health_routes

SECRET = "a secret of sixteen bytes or more"


def settings(port: int, **given: Any) -> ElectionSettings:
    return ElectionSettings(
        **{
            "coordination_stream_id": "shared",
            "endpoint_host_and_port": f"127.0.0.1:{port}",
            "shared_secret": SECRET,
            "timeout_ms": 2_000,
            **given,
        }
    )


class Pair:
    """Two members that talk."""

    def __init__(self, first: ElectionSettings, second: ElectionSettings) -> None:
        self.me = [
            Identity(item.endpoint, Incarnation(f"life-{at}"))
            for at, item in enumerate((first, second))
        ]
        health = health_routes(lambda: (True, {"status": "ok"}), _registry())
        self.transports = [HttpTransport(first), HttpTransport(second, routes=health)]
        self.got: list[Message] = []

    def message(self, term: int = 1) -> Message:
        return Resign(sender=self.me[0].name, incarnation=self.me[0].incarnation, term=Term(term))

    async def answer(self, message: Message) -> Message | None:
        self.got.append(message)
        return PingAnswer(
            sender=self.me[1].name,
            incarnation=self.me[1].incarnation,
            term=message.term,
            sent_ms=1.0,
        )

    def life_of(self, name: MemberName) -> Incarnation | None:
        return {who.name: who.incarnation for who in self.me}.get(name)


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("seen", "A series.", registry=registry).inc()
    return registry


@asynccontextmanager
async def pair(**given: Any) -> AsyncIterator[Pair]:
    first, second = (settings(port, **given) for port in free_ports(2))
    both = Pair(first, second)
    async with AsyncExitStack() as stack:
        for me, transport in zip(both.me, both.transports, strict=True):
            await transport.start(me, both.answer, both.life_of)
            stack.push_async_callback(transport.close)
        yield both


async def test_a_message_and_its_answer() -> None:
    """S2, S10: signed both ways."""
    async with pair() as both:
        answer = await both.transports[0].send(both.me[1].name, both.message(7))
        assert both.got == [both.message(7)]
        assert isinstance(answer, PingAnswer)
        assert answer.term == 7


async def test_members_of_one_process_share_a_port() -> None:
    """F71: each under its own path; the port is free when the last has left."""
    [port] = free_ports(1)
    site = HttpSite()
    both = Pair(settings(port, endpoint_path="/one"), settings(port, endpoint_path="/two"))
    given = [settings(port, endpoint_path=path) for path in ("/one", "/two")]
    both.transports = [HttpTransport(one, site=site) for one in given]
    for me, transport in zip(both.me, both.transports, strict=True):
        await transport.start(me, both.answer, both.life_of)
    assert await both.transports[0].send(both.me[1].name, both.message(3)) is not None
    await both.transports[1].close()
    with pytest.raises(Unavailable, match="404"):
        await both.transports[0].send(both.me[1].name, both.message(4))
    await both.transports[0].close()
    assert both.got == [both.message(3)]

    again = HttpTransport(settings(port))
    await again.start(both.me[0], both.answer, both.life_of)
    await again.close()


async def test_what_is_not_signed_or_comes_again_is_refused() -> None:
    """S10: and never reaches the member."""
    async with pair() as both, httpx.AsyncClient() as client:
        url = both.me[1].name
        sealer = both.transports[0]._sealer
        assert sealer is not None
        body, signature = sealer.seal(url, both.message())
        headers = {SIGNATURE_HEADER: signature.decode()}
        assert (await client.post(url, content=body)).status_code == 403
        assert (await client.post(url, content=body + b"x", headers=headers)).status_code == 403
        assert both.got == []
        assert (await client.post(url, content=body, headers=headers)).status_code == 200
        assert (await client.post(url, content=body, headers=headers)).status_code == 403
        assert both.got == [both.message()]
        assert (await client.get(url)).status_code == 405
        large = await client.post(url, content=b"x" * (BODY_BYTES_MAX + 1), headers=headers)
        assert large.status_code == 413


async def test_another_secret_opens_nothing() -> None:
    """S10: the sender hears why."""
    first, second = (settings(port) for port in free_ports(2))
    both = Pair(settings(1, shared_secret="another secret, also long enough"), second)
    both.transports[0] = HttpTransport(
        ElectionSettings(
            coordination_stream_id="shared",
            endpoint_host_and_port=first.endpoint_host_and_port,
            shared_secret="another secret, also long enough",
            timeout_ms=2_000,
        )
    )
    async with AsyncExitStack() as stack:
        for me, transport in zip(both.me, both.transports, strict=True):
            await transport.start(me, both.answer, both.life_of)
            stack.push_async_callback(transport.close)
        with pytest.raises(Unavailable, match="signature is wrong"):
            await both.transports[0].send(both.me[1].name, both.message())
        assert both.got == []


async def test_nobody_there_is_unavailable() -> None:
    """S2: a member that does not listen, and one that never registered."""
    async with pair() as both:
        await both.transports[1].close()
        with pytest.raises(Unavailable, match="does not answer"):
            await both.transports[0].send(both.me[1].name, both.message())
        with pytest.raises(Unavailable, match="not registered"):
            await both.transports[0].send(MemberName("http://stranger:1/x"), both.message())


async def test_an_address_that_is_taken_fails_the_start() -> None:
    """S10: with the setting that changes it."""
    async with pair() as both:
        port = int(both.me[1].name.split(":")[2].split("/")[0])
        again = HttpTransport(settings(port))
        with pytest.raises(Unavailable, match="endpoint_host_and_port"):
            await again.start(both.me[1], both.answer, both.life_of)


async def test_health_and_metrics_are_served_beside_it() -> None:
    """S11: without a signature."""
    async with pair() as both, httpx.AsyncClient() as client:
        base = both.me[1].name.removesuffix("/symphony-api/cluster-communication")
        health = await client.get(f"{base}/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        assert "seen_total 1.0" in (await client.get(f"{base}/metrics")).text


async def test_https_between_members(tmp_path: Path) -> None:
    """S10: `endpoint_scheme = "https"`, with certificates of one's own."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    tls = {
        "endpoint_scheme": "https",
        "certificate_path": str(certificate),
        "key_path": str(key),
        "authority_path": str(certificate),
    }
    async with pair(**tls) as both:
        assert both.me[1].name.startswith("https://")
        assert await both.transports[0].send(both.me[1].name, both.message()) is not None
        async with httpx.AsyncClient() as stranger:
            with pytest.raises((httpx.ConnectError, ssl.SSLError)):
                await stranger.get(both.me[1].name)


def test_a_transport_without_a_secret_is_refused() -> None:
    """S10: before it listens."""
    with pytest.raises(InvalidSetting, match="shared_secret"):
        HttpTransport(settings(1, shared_secret=""))
