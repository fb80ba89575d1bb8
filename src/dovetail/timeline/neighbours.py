"""The clocks around a broker, and how far away they are: other brokers, storage, coordination.

Every few seconds each of them is asked for its time. The answer gives two figures: how long the way
there takes, for the list of brokers and the metrics, and how far its clock is from ours, for
`drift`. Nobody waits for this, and one that does not answer has no figures.

- Brokers answer `Hello` with their time.
- A store has a clock of its own (`TimelineStore.time_ms`).
- etcd tells no time in its protocol, but dates its answers over HTTP, in whole seconds: known up to
  half a second more than the way there.
"""

import asyncio
import email.utils
import random
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

from dovetail.clock import Clock
from dovetail.errors import DovetailError, Unavailable
from dovetail.timeline import frames
from dovetail.timeline.engine.drift import Drift, Target
from dovetail.timeline.frame_codec import decode_answer, encode_request
from dovetail.wire.login import ClientLogin
from dovetail.wire.peer import Greeting, Peer, PeerSettings, Request

#: How long one of them is waited for.
_ANSWER_MS: Final = 2_000
#: A date in whole seconds stands for the middle of its second.
_HALF_SECOND_MS: Final = 500
_ANSWER_BYTES_MAX: Final = 64 * 1024


class Neighbours:
    """Asks the other brokers of a cluster for their time."""

    def __init__(
        self, *, node: str, clock: Clock, drift: Drift, tls: ssl.SSLContext | None
    ) -> None:
        self._node = node
        self._settings = PeerSettings(call_ms_max=_ANSWER_MS, login=ClientLogin(tls))
        self._clock = clock
        self._drift = drift
        self._peers: dict[tuple[str, str], Peer] = {}
        #: Milliseconds there and back, by name; those that answered last time.
        self.latency_ms: dict[str, float] = {}

    async def ask(self, addresses: Mapping[str, str]) -> None:
        """Asks all of them at once; `addresses` by the names of the brokers."""
        for gone in self._peers.keys() - addresses.items():
            await self._peers.pop(gone).close()
            self._forget(gone[0])
        await asyncio.gather(*(self._ask(name, where) for name, where in addresses.items()))

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()
        self._peers.clear()

    async def _ask(self, name: str, address: str) -> None:
        peer = self._peers.get((name, address))
        if peer is None:
            host, _, port = address.rpartition(":")
            peer = Peer(
                host,
                int(port),
                greeting=Greeting(_hello(), lambda data: None),
                client_id=self._node,
                settings=self._settings,
                rng=random.SystemRandom(),
            )
            self._peers[name, address] = peer
        try:
            if not peer.connected:
                # What a connection costs is not the way there.
                await peer.ask(_hello(), _welcome)
            sent_ms, began_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
            welcome = await peer.ask(_hello(), _welcome)
        except DovetailError:
            self._forget(name)
            return
        self.latency_ms[name] = self._clock.monotonic_ms() - began_ms
        self._drift.on_answer(
            Target.BROKER,
            name,
            sent_ms=sent_ms,
            theirs_ms=welcome.now_ms,
            received_ms=sent_ms + self.latency_ms[name],
        )

    def _forget(self, name: str) -> None:
        self.latency_ms.pop(name, None)
        self._drift.forget(Target.BROKER, name)


def _hello() -> Request:
    body = encode_request(frames.Hello(frames.VERSION))
    return Request(frames.TimelineKey.HELLO, frames.VERSION, body, Unavailable)


def _welcome(data: memoryview) -> "frames.Welcome | DovetailError":
    return decode_answer(frames.Welcome, data)


class DatedService:
    """A coordination service that dates its answers over HTTP."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        clock: Clock,
        drift: Drift,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`endpoints`: host:port."""
        self._endpoints = endpoints
        self._tls = tls
        self._clock = clock
        self._drift = drift

    async def ask(self) -> None:
        """Asks every member for its time."""
        await asyncio.gather(*(self._ask(endpoint) for endpoint in self._endpoints))

    async def _ask(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        sent_ms, began_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(_ANSWER_MS / 1000):
                text = await _version_of(host.strip("[]"), int(port), self._tls)
        except (OSError, TimeoutError, asyncio.LimitOverrunError):
            text = ""
        dated_ms = date_ms(text)
        if dated_ms is None:
            self._drift.forget(Target.COORDINATION, endpoint)
            return
        took_ms = self._clock.monotonic_ms() - began_ms
        self._drift.on_offset(
            Target.COORDINATION,
            endpoint,
            offset_ms=dated_ms + _HALF_SECOND_MS - (sent_ms + took_ms / 2),
            uncertain_ms=_HALF_SECOND_MS + took_ms / 2,
            now_ms=self._clock.wall_ms(),
        )


async def _version_of(host: str, port: int, tls: ssl.SSLContext | None) -> str:
    reader, writer = await asyncio.open_connection(host, port, limit=_ANSWER_BYTES_MAX, ssl=tls)
    try:
        writer.write(f"GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return ""
    finally:
        writer.close()
    return head.decode("latin-1")


def date_ms(head: str) -> int | None:
    """The `Date` of an answer's head in milliseconds; None if it has none."""
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                return round(email.utils.parsedate_to_datetime(value.strip()).timestamp() * 1000)
            except ValueError:
                return None
    return None
