"""Compares our clock with those of storage, coordination and the other brokers.

Every few seconds each of them is asked for its time. The answer gives two figures: the latency, for
the metrics, and how far its clock is from ours, for `drift`. Nobody waits for this, and a peer that
does not answer has no figures.

- A store has its own clock (`TimelineStore.time_ms`).
- etcd's protocol has no time, but its HTTP answers have a date in whole seconds: known up to half a
  second more than the latency.
- The node's prober has asked the other brokers already (`wire/probe.py`).
"""

import asyncio
import contextlib
import email
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final

from dovetail.addresses import Address, parse_address
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.errors import DovetailError
from dovetail.logging import get_logger
from dovetail.timeline.engine.drift import Drift, Target
from dovetail.timeline.engine.health import Health
from dovetail.timeline.metrics import TimelineMetrics
from dovetail.wire.probe import Prober

_log = get_logger("timeline")

#: Time between two comparisons.
COMPARE_MS: Final = 3_000
#: How long an answer is waited for.
_ANSWER_MS: Final = 2_000
#: A date in whole seconds stands for the middle of its second.
_HALF_SECOND_MS: Final = 500
_ANSWER_BYTES_MAX: Final = 64 * 1024
#: A key that is read to see how long that takes.
_PING: Final = "/timelines/last"


class Clocks:
    """Compares our clock with the others, and reports to `health` while ours is wrong."""

    def __init__(
        self,
        clock: Clock,
        *,
        health: Health,
        drift: Drift,
        metrics: TimelineMetrics,
        coordinator: Coordinator,
        dated: "DatedService",
        storage_ms: Callable[[], Awaitable[int] | None],
        brokers: Callable[[], Mapping[str, Address]],
        prober: Prober | None,
    ) -> None:
        """`storage_ms` asks the store for its time, None if it has no clock of its own; `brokers`
        are the others, by name."""
        self._clock = clock
        self._health = health
        self._drift = drift
        self._metrics = metrics
        self._coordinator = coordinator
        self._dated = dated
        self._storage_ms = storage_ms
        self._brokers = brokers
        self._prober = prober
        self._at_once = asyncio.Event()
        self._drifted = False
        #: Milliseconds to the other brokers and back, by name; those that answered last time.
        self.latency_ms: dict[str, float] = {}

    async def compare(self) -> None:
        """Asks everybody, then waits for the next time."""
        jumped = self._health.jumped
        if jumped:
            self._drift.forget_all()
            self._health.jumped = False
        await asyncio.gather(
            self._ask_storage(), self._ask_coordination(), self._ask_brokers(again=jumped)
        )
        self.judge(self._clock.wall_ms())

        self._at_once.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMPARE_MS / 1000):
                await self._at_once.wait()

    def judge(self, now_ms: int) -> None:
        """Decides by what is known whether our clock is wrong."""
        if self._health.jumped:
            # Nothing is known by this clock yet.
            self._at_once.set()
            return
        reason = self._drift.verdict(now_ms=now_ms).reason
        if bool(reason) != self._drifted:
            text = reason or "the clock is right again"
            _log.warning("drift", pushing=not reason, reason=text)
        self._drifted = bool(reason)
        self._health.drift_reason = reason

    async def _ask_storage(self) -> None:
        sent_ms, began_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        asked = self._storage_ms()
        if asked is None:
            return
        try:
            theirs_ms = await asked
        except DovetailError as error:
            _log.warning("storage was not asked for its time", error=str(error))
            return
        took_ms = self._clock.monotonic_ms() - began_ms
        self._metrics.round_trip("storage", took_ms)
        self._note(Target.STORAGE, "store", sent_ms, took_ms, theirs_ms)

    async def _ask_coordination(self) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            await self._coordinator.get(_PING)
        except DovetailError as error:
            _log.warning("coordination did not answer", error=str(error))
            return
        self._metrics.round_trip("sync", self._clock.monotonic_ms() - began_ms)
        await self._dated.ask()

    async def _ask_brokers(self, *, again: bool) -> None:
        """Reads the last probes; after a jump of our clock they say nothing, and are made again."""
        if self._prober is None:
            return
        if again:
            await self._prober.probe_all()
        probes, found = self._prober.probes(), {}
        for name, address in self._brokers().items():
            if probe := probes.get(address):
                found[name] = probe.latency_ms
                at = (probe.sent_ms, probe.latency_ms, probe.theirs_ms)
                self._note(Target.BROKER, name, *at)
        for silent in self.latency_ms.keys() - found.keys():
            self._drift.forget(Target.BROKER, silent)
        self.latency_ms = found
        self._metrics.round_trip("broker", max(found.values(), default=0.0))

    def _note(
        self, target: Target, name: str, sent_ms: int, took_ms: float, theirs_ms: int
    ) -> None:
        received_ms = sent_ms + took_ms
        self._drift.on_answer(
            target, name, sent_ms=sent_ms, theirs_ms=theirs_ms, received_ms=received_ms
        )


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
        self._endpoints = [parse_address(endpoint) for endpoint in endpoints]
        self._tls = tls
        self._clock = clock
        self._drift = drift

    async def ask(self) -> None:
        """Asks every member for its time."""
        await asyncio.gather(*(self._ask(endpoint) for endpoint in self._endpoints))

    async def _ask(self, endpoint: Address) -> None:
        sent_ms, began_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(_ANSWER_MS / 1000):
                text = await _version_of(endpoint, self._tls)
        except (OSError, TimeoutError, asyncio.LimitOverrunError):
            text = ""

        dated_ms = date_ms(text)
        if dated_ms is None:
            self._drift.forget(Target.COORDINATION, str(endpoint))
            return
        took_ms = self._clock.monotonic_ms() - began_ms
        self._drift.on_offset(
            Target.COORDINATION,
            str(endpoint),
            offset_ms=dated_ms + _HALF_SECOND_MS - (sent_ms + took_ms / 2),
            uncertain_ms=_HALF_SECOND_MS + took_ms / 2,
            now_ms=self._clock.wall_ms(),
        )


async def _version_of(endpoint: Address, tls: ssl.SSLContext | None) -> str:
    reader, writer = await asyncio.open_connection(*endpoint, limit=_ANSWER_BYTES_MAX, ssl=tls)
    try:
        asked = f"GET /version HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n"
        writer.write(asked.encode())
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return ""
    finally:
        writer.close()
    return head.decode("latin-1")


def date_ms(head: str) -> int | None:
    """The `Date` of an answer's head in milliseconds; None if it has none."""
    _, _, headers = head.partition("\r\n")
    date = email.message_from_string(headers)["date"]
    try:
        return None if date is None else round(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return None
