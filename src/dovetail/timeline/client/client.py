"""`connect`: a client of one node, its timelines and its consumers."""

import asyncio
import os
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from dovetail.background import failure_of, start_task
from dovetail.clock import Clock, SystemClock
from dovetail.errors import DovetailError, InvalidInput
from dovetail.foreign import check_key, described, shown
from dovetail.supervision import Supervisor
from dovetail.timeline import frames
from dovetail.timeline.client.consumer import Consumer
from dovetail.timeline.client.leading import Lead, leading
from dovetail.timeline.client.link import COMMAND_MS_MAX, Link, NetworkLink
from dovetail.timeline.client.moments import Duration, duration_ms
from dovetail.timeline.client.options import ConsumerOptions
from dovetail.timeline.client.timeline import Timeline
from dovetail.wire.login import SCRAM_SHA_512, ClientLogin

HandlerType = TypeVar("HandlerType", bound=Callable[..., Any])


def connect(
    address: str = "127.0.0.1:9092",
    *,
    client_id: str = "",
    rack: str = "",
    tls: ssl.SSLContext | None = None,
    user: str = "",
    password: str = "",
    mechanism: str = SCRAM_SHA_512,
) -> "Dovetail":
    """A client of the node at `address` (several, with commas between them, in a cluster); use it
    with `async with`.

    `client_id` is what the node knows this process by, and what producers are counted under.
    `tls` (such as `ssl.create_default_context(cafile="ca.pem")`), `user`, `password` and
    `mechanism` are for nodes that want them; see docs/security.md.
    """
    login = ClientLogin(tls, user, password, mechanism)
    name = client_id or f"{socket.gethostname()}-{os.getpid()}"

    def make_link(call_ms_max: int, first: str) -> Link:
        known = address.split(",")
        addresses = known if not first else [first, *(each for each in known if each != first)]
        return NetworkLink(
            ",".join(addresses), client_id=name, call_ms_max=call_ms_max, login=login
        )

    return Dovetail(make_link, client_id=name, rack=rack)


class Dovetail:
    """A client. Inside `async with` it is connected, and its consumers run."""

    def __init__(
        self,
        make_link: Callable[[int, str], Link],
        *,
        client_id: str,
        rack: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._make_link = make_link
        self._client_id = client_id
        self._rack = rack
        self._clock = clock or SystemClock()
        self._link: Link | None = None
        self._timelines: dict[str, Timeline] = {}
        self._consumers: list[Consumer] = []
        self._running: dict[asyncio.Task[None], Consumer] = {}
        self._supervisor = Supervisor()
        self._over = False

    async def __aenter__(self) -> Self:
        if self._link is not None or self._over:
            raise InvalidInput("this client was entered before; make another one")
        with self._supervisor.supervising():
            self._link = self._make_link(COMMAND_MS_MAX, "")
        for consumer in self._consumers:
            self._start(consumer)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._over = True
        await self.stop()
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    def timeline(self, name: str) -> Timeline:
        """A timeline by its name; nothing is asked yet."""
        link, found = self._connected(), self._timelines.get(name)
        if found is None:
            found = Timeline(name, link, client_id=self._client_id, clock=self._clock)
            self._timelines[name] = found
        return found

    async def timelines(self) -> list[tuple[str, str]]:
        """Names of all timelines, with their states."""
        request = frames.ListTimelines()
        return (await self._connected().ask(request, frames.Listed, changes=False)).timelines

    async def brokers(self, timeline: str = "") -> list[frames.BrokerState]:
        """The brokers of the cluster, the best one for a client of the timeline first."""
        request = frames.Cluster(timeline)
        return (await self._connected().ask(request, frames.ClusterState, changes=False)).brokers

    def consumer(
        self,
        timeline: str,
        *,
        lease: Duration = "30s",
        concurrency: int = 16,
        batch: int = 0,
        prefetch: int | None = None,
        timeout: Duration = 0,
        id: str = "",  # noqa: A002 - it is the consumer's id, and everybody calls it that
        stop: Duration = "30s",
    ) -> Callable[[HandlerType], HandlerType]:
        """Has a function handle the messages of a timeline, up to `concurrency` at once.

        A coroutine function runs in the loop, a plain one in a thread. It returns: done. It raises:
        the message comes again later, and is a dead letter after the timeline's last attempt. With
        `batch`, it is given lists of up to so many. `prefetch` messages wait here for a handler, by
        default as many as are handled at once; they go back when another consumer is idle. After
        `timeout` without `message.progress()` a handler is cancelled, which is a failure. Under an
        `id` that was used before, leases that its former life held are handled too.
        """
        if not isinstance(timeline, str):
            raise InvalidInput(f"{shown(timeline)} is not the name of a timeline: write its name")
        name = id or f"{self._client_id}-{uuid.uuid4().hex[:8]}"
        options = ConsumerOptions(
            lease_ms=duration_ms(lease),
            concurrency=concurrency,
            batch=batch,
            prefetch=prefetch,
            handling_ms_max=duration_ms(timeout),
            rack=self._rack,
            id=check_key(name, "consumer id"),
            stop_ms=duration_ms(stop),
        )

        def register(handler: HandlerType) -> HandlerType:
            consumer = Consumer(
                timeline, handler, options, connect=self._make_link, clock=self._clock
            )
            self._consumers.append(consumer)
            if self._link is not None:
                self._start(consumer)
            return handler

        return register

    @asynccontextmanager
    async def lead(self, name: str, *, lease: Duration = "10s") -> AsyncIterator[Lead]:
        """Waits until this program is the one that leads under a name; use it with `async with`.

        The next one leads when the block ends, or `lease` after this program died. Raises
        `InvalidInput`.
        """
        alone = Dovetail(
            self._make_link, client_id=self._client_id, rack=self._rack, clock=self._clock
        )
        async with alone, leading(alone, name, lease=lease) as lead:
            yield lead

    async def run(self) -> None:
        """Serves until cancelled, or until a consumer cannot go on; raises its error then."""
        while self._running:
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # Whoever stops us may have seen its end before.
                self._running.pop(task, None)
                task.result()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the client works, and what of it has ended or fails again and again."""
        ended = {
            consumer.timeline: described(error)
            for task, consumer in self._running.items()
            if task.done() and (error := failure_of(task)) is not None
        }
        problems = self._supervisor.problems()
        healthy = self._link is not None and not ended and not problems
        return healthy, {
            "status": "ok" if healthy else "degraded",
            "consumers_ended": ended,
            "problems": problems,
        }

    async def stop(self) -> None:
        """Stops the consumers gracefully: what runs may end, what waits goes back."""
        for consumer in self._running.values():
            consumer.stop()
        if self._running:
            await asyncio.wait(self._running)
        self._running.clear()

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    def _start(self, consumer: Consumer) -> None:
        with self._supervisor.supervising():
            task = start_task(
                consumer.run(),
                name="client/consumer",
                of=consumer.timeline,
                expected=(DovetailError,),
            )
        self._running[task] = consumer

    def _connected(self) -> Link:
        if self._link is None:
            raise RuntimeError("not connected; use `async with dovetail.connect(...) as d:`")
        return self._link
