"""Probes peers: latency of another node, and how far its clock is from ours; once per peer.

A probe is a `Hello` on an existing connection, so the time to connect does not count as latency.
The node answers with its time, so one probe gives both figures. The overseer and the timelines of a
node read the same ones.

Nobody waits for a probe, and a peer that did not answer the last one has no figures.
Not here: whether a peer is alive. Its lease decides that (`coordination/membership.py`).
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dovetail.addresses import Address
from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.errors import DovetailError
from dovetail.wire.calls import Welcome, decode_answer, hello
from dovetail.wire.login import ClientLogin
from dovetail.wire.peer import Greeting, Peer, PeerSettings

#: How often each peer is probed.
PROBE_MS: Final = 3_000

#: How long an answer is waited for.
ANSWER_MS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Probe:
    """What one probe found. Times are wall clocks."""

    sent_ms: int
    #: There and back.
    latency_ms: float
    #: What the peer's clock said.
    theirs_ms: int


class Prober:
    """Probes every peer of a node, between `start` and `stop`."""

    def __init__(
        self,
        peers: Callable[[], Iterable[Address]],
        *,
        client_id: str,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._peers = peers
        self._client_id = client_id
        self._clock = clock
        self._login = ClientLogin(tls)
        self._lines: dict[Address, Peer] = {}
        self._probes: dict[Address, Probe] = {}
        self._probing = asyncio.Lock()
        self._tasks = Tasks()

    def start(self) -> None:
        """Begins to probe."""
        self._tasks.keep(self._run, name="wire/probe")

    async def stop(self) -> None:
        """Ends all connections."""
        await self._tasks.stop()
        for line in self._lines.values():
            await line.close()
        self._lines.clear()

    def probes(self) -> Mapping[Address, Probe]:
        """The last probe of each peer that answered it."""
        return self._probes

    async def probe_all(self) -> None:
        """Probes every peer now; returns when each has answered or was waited for."""
        async with self._probing:
            there = set(self._peers())
            for gone in self._lines.keys() - there:
                self._probes.pop(gone, None)
                await self._lines.pop(gone).close()
            await asyncio.gather(*map(self._probe, there))

    async def _run(self) -> None:
        while True:
            await self.probe_all()
            await asyncio.sleep(PROBE_MS / 1000)

    async def _probe(self, address: Address) -> None:
        line = self._lines.get(address)
        if line is None:
            line = _line(address, client_id=self._client_id, login=self._login)
            self._lines[address] = line
        try:
            self._probes[address] = await _probe_on(line, self._clock)
        except DovetailError:
            self._probes.pop(address, None)


async def probe(address: Address, *, client_id: str, clock: Clock, login: ClientLogin) -> Probe:
    """Probes one node, once. Raises `Unavailable` or `Forbidden`."""
    line = _line(address, client_id=client_id, login=login)
    try:
        return await _probe_on(line, clock)
    finally:
        await line.close()


def _line(address: Address, *, client_id: str, login: ClientLogin) -> Peer:
    return Peer(
        *address,
        greeting=Greeting(hello(), lambda _: None),
        client_id=client_id,
        settings=PeerSettings(call_ms_max=ANSWER_MS_MAX, login=login),
        rng=random.SystemRandom(),
    )


async def _probe_on(line: Peer, clock: Clock) -> Probe:
    if not line.connected:
        await line.ask(hello(), _welcome)
    sent_ms, began_ms = clock.wall_ms(), clock.monotonic_ms()
    welcome = await line.ask(hello(), _welcome)
    return Probe(sent_ms, clock.monotonic_ms() - began_ms, welcome.now_ms)


def _welcome(data: memoryview) -> Welcome | DovetailError:
    return decode_answer(Welcome, data)
