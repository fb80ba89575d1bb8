"""Several brokers on one machine: processes beside the one that has the disk (`up --brokers`).

    this process          storage and coordination (`coordination.share`), on a port of its own
      ├ broker 101        `dovetail node`, its coordination shared with this process
      ├ broker 102
      └ ...

Promises:
- A broker that ends is started again, on its ports, after a pause that grows while it keeps
  ending. Meanwhile the others take its partitions, as in any cluster, and `/readyz` of this process
  names it.
- No broker outlives this process: each ends when its standard input does, which the system closes
  when this process is gone, however it went.
- A stop asks all brokers at once, waits until they have closed their ledgers, and only then ends
  storage and coordination.

A broker is safe without any of this: leases, terms and fences are those of a cluster.

Not here: what a broker does; who starts this process again.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dovetail.addresses import parse_address
from dovetail.background import first_of, start_task
from dovetail.errors import InvalidSetting, Unavailable
from dovetail.logging import get_logger
from dovetail.node import Node
from dovetail.settings import Settings

_log = get_logger("cli")

#: Numbers of brokers begin so far behind that of storage.
NUMBER_BASE = 100

#: Most of them: a machine has no more cores to give than this.
BROKERS_MAX = 64

#: The pause before a broker is started again: doubled while it keeps ending soon, up to the most.
RESTART_S_MIN = 0.5
RESTART_S_MAX = 10.0

#: One that has lived for so long ended for a new reason.
LIVED_S = 30.0

#: A broker that is asked to stop hands nothing over but closes its ledgers; then it is killed.
STOP_S_MAX = 30.0

_PORT_MAX = 65_535

#: What every broker is given by itself, whatever was set for all.
_OWN = {
    "coordination.kind",
    "coordination.share",
    "coordination.shared_at",
    "http.enabled",
    "http.port",
    "kafka.advertised_host",
    "kafka.advertised_port",
    "kafka.host",
    "kafka.port",
    "node.data_dir",
    "node.name",
    "node.node_id",
    "node.roles",
}


def check(settings: Settings, brokers: int) -> None:
    """Raises `InvalidSetting` if these settings cannot be those of several brokers."""
    if settings.coordination.kind != "embedded":
        raise InvalidSetting(
            "--brokers is for one machine without etcd (coordination.kind 'embedded'); with etcd "
            "start each broker with `dovetail node --roles overseer,broker`"
        )
    if settings.security.on and not settings.security.node_names():
        raise InvalidSetting(
            "with logins or access rules, several brokers need certificates by which they know "
            "each other: set security.tls_certificate, tls_key, tls_ca and nodes"
        )
    for name, port in (("kafka.port", settings.kafka.port), ("http.port", settings.http.port)):
        if port + brokers > _PORT_MAX:
            raise InvalidSetting(f"{name} {port}: {brokers} brokers need as many ports from there")
    clients, http = settings.kafka.port, settings.http.port
    # Each broker has one of both, and this process one more for HTTP.
    if clients and http and settings.http.enabled and -brokers <= http - clients < brokers:
        raise InvalidSetting(
            f"the ports for HTTP, {http} to {http + brokers}, meet those for Kafka clients, "
            f"{clients} to {clients + brokers - 1}; choose others with --http-port or --port"
        )

    kept = sorted((settings.node.data_dir / "timelines").glob("*.sqlite"))
    if kept and settings.timeline.enabled and settings.timeline.store == "sqlite":
        raise InvalidSetting(
            f"{kept[0].parent} holds {len(kept)} timelines in files, which one process serves; "
            "several brokers need timeline.store = 'postgres'. Start without --brokers, or give "
            "the timelines up with timeline.enabled = false"
        )


def storage_settings(settings: Settings, brokers: int) -> Settings:
    """The settings of this process: storage and coordination, and ports behind the brokers'."""
    kafka, http = settings.kafka, settings.http
    # Brokers reach it without leaving the machine; with TLS by the name in its certificate.
    host = {} if settings.security.tls else {"host": "127.0.0.1", "advertised_host": ""}
    return settings.model_copy(
        update={
            "node": settings.node.model_copy(update={"roles": "overseer,storage"}),
            "coordination": settings.coordination.model_copy(update={"share": True}),
            "kafka": kafka.model_copy(update={"port": 0, "advertised_port": 0, **host}),
            "http": http.model_copy(update={"port": http.port + brokers if http.port else 0}),
        }
    )


@dataclass(slots=True)
class Broker:
    """One of them: where it listens, and how it is."""

    number: int
    port: int
    http_port: int
    advertised_port: int
    data_dir: Path
    #: Its address for clients and its URL, once it serves.
    kafka: str = ""
    http: str | None = None
    process: asyncio.subprocess.Process | None = None
    #: Why it does not serve; empty if it does.
    trouble: str = "starting"
    #: How it ended before it ever served.
    failed: str = ""
    settled: asyncio.Event = field(default_factory=asyncio.Event)


def planned(settings: Settings, brokers: int) -> list[Broker]:
    """The brokers with their numbers and ports; a port of 0 is chosen when it starts."""
    kafka, http, node = settings.kafka, settings.http, settings.node

    def nth(port: int, at: int) -> int:
        return port + at if port else 0

    return [
        Broker(
            number=node.node_id + NUMBER_BASE + at,
            port=nth(kafka.port, at),
            http_port=nth(http.port, at),
            advertised_port=nth(kafka.advertised_port, at),
            data_dir=node.data_dir / "brokers" / str(node.node_id + NUMBER_BASE + at),
        )
        for at in range(brokers)
    ]


def arguments(broker: Broker, settings: Settings, shared_at: str) -> list[str]:
    """What a broker is started with, behind `dovetail`, apart from what was set for all."""
    found = [
        "node",
        "--json",
        "--until-input-ends",
        "--roles=overseer,broker",
        f"--node-id={broker.number}",
        f"--name=broker-{broker.number}",
        f"--data-dir={broker.data_dir}",
        f"--host={settings.kafka.host}",
        f"--port={broker.port}",
        f"--advertised-port={broker.advertised_port}",
        f"--set=http.port={broker.http_port}",
        f"--set=http.enabled={str(settings.http.enabled).lower()}",
        "--set=coordination.kind=shared",
        "--set=coordination.share=false",
        f"--set=coordination.shared_at={shared_at}",
    ]
    if settings.kafka.advertised_host:
        found.append(f"--advertised-host={settings.kafka.advertised_host}")
    return found


class BrokerProcesses:
    """The brokers beside a node, from `run` to its end."""

    def __init__(
        self,
        settings: Settings,
        brokers: int,
        *,
        config: Path | None,
        assignments: Sequence[str],
    ) -> None:
        """`settings` are those for all; `config` and `assignments` are how they were given."""
        self._settings = settings
        self._given = [] if config is None else [f"--config={config}"]
        self._given += [f"--set={text}" for text in assignments if text.split("=")[0] not in _OWN]
        self._stopping = False
        self.brokers = planned(settings, brokers)

    def problems(self) -> list[str]:
        """The brokers that do not serve, and why."""
        return [f"broker {one.number}: {one.trouble}" for one in self.brokers if one.trouble]

    @asynccontextmanager
    async def run(self, node: Node) -> AsyncIterator[None]:
        """Keeps them running inside; all serve when it is entered, and none runs after it.

        Raises `Unavailable` if one ends before it ever served.
        """
        node.also.append(self.problems)
        keepers = []
        for broker in self.brokers:
            keeper = start_task(
                self._keep(broker, node.endpoints.kafka), name="cli/broker", of=str(broker.number)
            )
            keepers.append(keeper)
            # Without its keeper a broker would not come back, and nobody would say so.
            keeper.add_done_callback(lambda _: None if self._stopping else node.lost.set())
        try:
            for broker in self.brokers:
                await first_of(broker.settled.wait(), node.lost.wait())
                if broker.failed:
                    raise Unavailable(f"broker {broker.number} {broker.failed}")
            yield
        finally:
            await self._stop()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _keep(self, broker: Broker, shared_at: str) -> None:
        pause_s, loop = RESTART_S_MIN, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            code = await self._live(broker, shared_at)
            if self._stopping:
                return
            broker.trouble = f"ended with code {code}; it is started again"
            if not broker.settled.is_set():
                broker.failed = f"ended with code {code} before it was ready; its log says why"
                broker.settled.set()
            _log.error("a broker ended; starting it again", broker=broker.number, code=code)

            pause_s = RESTART_S_MIN if loop.time() - began_s > LIVED_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _live(self, broker: Broker, shared_at: str) -> int:
        """One life of a broker; its exit code."""
        process = broker.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dovetail",
            *arguments(broker, self._settings, shared_at),
            *self._given,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C reaches this process alone, which stops them in order.
            start_new_session=True,
        )
        assert process.stdout is not None
        if self._stopping:
            _send(process, signal.SIGTERM)
        async for line in process.stdout:
            if line.startswith(b"{"):
                _note_ready(broker, json.loads(line))
        return await process.wait()

    async def _stop(self) -> None:
        """Asks all at once; who has not ended in time is killed, which is as safe."""
        self._stopping = True
        running = [
            broker.process
            for broker in self.brokers
            if broker.process is not None and broker.process.returncode is None
        ]
        for process in running:
            _send(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                for process in running:
                    await process.wait()
        except TimeoutError:
            _log.warning("brokers did not stop in time; killing them", seconds=STOP_S_MAX)
            for process in running:
                _send(process, signal.SIGKILL)
            for process in running:
                await process.wait()


def _note_ready(broker: Broker, ready: dict[str, Any]) -> None:
    broker.kafka, broker.http = ready["advertised"], ready["http"]
    # It comes back where its clients know it.
    broker.port = parse_address(ready["kafka"]).port
    if broker.http is not None:
        broker.http_port = urlsplit(broker.http).port or 0

    broker.trouble = ""
    broker.settled.set()
    _log.info("broker ready", broker=broker.number, kafka=broker.kafka, http=broker.http)


def end_with_input() -> None:
    """Ends this process when its standard input ends: whoever started it is gone."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
