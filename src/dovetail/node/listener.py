"""The listener: passes each incoming frame to the service that its api key names.

Kafka requests and private calls share one port, and with it limits, TLS, login, metrics and
pipelining. A service that has not started yet is None; the listener refuses its requests, and
clients retry.
"""

import asyncio
from dataclasses import dataclass

from dovetail.background import Tasks
from dovetail.buffers import Buffer
from dovetail.clock import Clock
from dovetail.coordination.calls import CALLS as COORDINATION_CALLS
from dovetail.coordination.membership import Membership
from dovetail.coordination.service import CoordinationService
from dovetail.errors import ProtocolViolation
from dovetail.kafka.handlers import KafkaDispatch
from dovetail.log.ends.calls import CALLS as ENDS_CALLS
from dovetail.log.ends.calls import EndsService
from dovetail.log.share.brokers import ShareService
from dovetail.log.share.calls import CALLS as SHARE_CALLS
from dovetail.log.transactions.brokers import TransactionService
from dovetail.log.transactions.calls import CALLS as TRANSACTION_CALLS
from dovetail.logging import RateLimitedLog, get_logger
from dovetail.node.metrics import Metrics
from dovetail.node.security import Security
from dovetail.settings import Settings
from dovetail.storage.calls import CALLS as STORAGE_CALLS
from dovetail.storage.service import StorageService
from dovetail.timeline.frames import CALLS as TIMELINE_CALLS
from dovetail.timeline.service import TimelineService
from dovetail.wire import ByteBudget, Connection, Limits, Reply, WireServer, calls

_log = get_logger("node")

#: How often suppressed lines are summed up in the log.
FLUSH_MS = 1000


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to this node, and what is known of the client at its other end."""

    address: str
    #: Empty before its login, and where nobody logs in.
    user: str
    client: str
    software: str
    produces: bool
    fetches: bool
    connected_ms: int
    silent_ms: int


class Listener:
    """Serves one port, from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        *,
        security: Security,
        membership: Membership | None,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._security = security
        self._membership = membership
        self._metrics = metrics
        self._clock = clock
        self._refusals = RateLimitedLog(get_logger("wire"), clock)
        self._tasks = Tasks()
        self._server: WireServer | None = None
        self.kafka: KafkaDispatch | None = None
        self.storage: StorageService | None = None
        #: Of the disk of `storage`.
        self.identity = ""
        self.coordination: CoordinationService | None = None
        self.timelines: TimelineService | None = None
        self.transactions: TransactionService | None = None
        self.shares: ShareService | None = None
        self.ends: EndsService | None = None

    async def start(self) -> int:
        """Listens; returns the port, which differs from the setting if that is 0."""
        kafka = self._settings.kafka
        limits = Limits(
            frame_bytes_max=kafka.frame_bytes_max,
            frame_read_ms=kafka.frame_read_ms,
            idle_ms=kafka.idle_ms,
            connections_max=kafka.connections_max,
        )
        budget = ByteBudget(kafka.request_bytes_in_flight_max)
        self._server = WireServer(self._dispatch, limits, budget, self)
        port = await self._server.start(
            kafka.host,
            kafka.port,
            tls=self._security.server_tls,
            on_sweep=self._security.look_at_files,
        )
        self._tasks.keep(self._flush_log, name="node/suppressed-lines")
        return port

    async def stop(self) -> None:
        """Answers what is on its way, and closes."""
        await self._tasks.stop()
        if self._server is not None:
            await self._server.stop()
        self._refusals.flush(final=True)

    def clients(self) -> list[Client]:
        """Who is connected, the longest first."""
        server, now_ms = self._server, asyncio.get_running_loop().time() * 1000
        if server is None:
            return []
        found = [self._client(one, now_ms) for one in server.connections]
        return sorted(found, key=lambda client: -client.connected_ms)

    def _client(self, connection: Connection, now_ms: float) -> Client:
        return Client(
            address=connection.peer,
            user=self._security.user_of(connection),
            client=connection.client,
            software=connection.software,
            produces=connection.produces,
            fetches=connection.fetches,
            connected_ms=round(now_ms - connection.since_ms),
            silent_ms=round(now_ms - connection.active_ms),
        )

    def _dispatch(self, connection: Connection, frame: memoryview) -> Reply:
        key = calls.api_key_of(frame)
        if key == calls.HELLO_KEY:
            return self._answer_hello(connection, frame)
        if self.timelines is not None and key in calls.TIMELINE_KEYS:
            return self.timelines(connection, frame, self._security.access_of(connection))
        if self.storage is not None and key in calls.STORAGE_KEYS:
            self._security.demand_node(connection)
            return self.storage(connection, frame)
        if self.coordination is not None and key in calls.COORDINATION_KEYS:
            self._security.demand_node(connection)
            return self.coordination(connection, frame)

        if self.transactions is not None and key in calls.TRANSACTION_KEYS:
            self._security.demand_node(connection)
            return self.transactions(connection, frame)
        if self.shares is not None and key in calls.SHARE_KEYS:
            self._security.demand_node(connection)
            return self.shares(connection, frame)
        if self.ends is not None and key in calls.ENDS_KEYS:
            self._security.demand_node(connection)
            return self.ends(connection, frame)

        if self.kafka is None:
            raise ProtocolViolation("this node does not serve Kafka clients, or is still starting")
        if self._membership is not None and not self._membership.holds_lease():
            # What it knows may be long past, and a client that hears it stays with this node. Sent
            # away, it asks another one.
            connection.close()
            return None
        return self.kafka(connection, frame)

    def _answer_hello(self, connection: Connection, frame: memoryview) -> list[Buffer]:
        """Says what this node serves to this client. Storage is for nodes alone."""
        self._security.access_of(connection)
        # Kafka clients say which library they are; only ours says hello.
        connection.software = connection.software or "dovetail"
        services, identity = [], ""
        if self.timelines is not None:
            services.append(TIMELINE_CALLS.service)
        if self.transactions is not None and self._security.is_node(connection):
            services.append(TRANSACTION_CALLS.service)
        if self.shares is not None and self._security.is_node(connection):
            services.append(SHARE_CALLS.service)
        if self.ends is not None and self._security.is_node(connection):
            services.append(ENDS_CALLS.service)
        if self.coordination is not None and self._security.is_node(connection):
            services.append(COORDINATION_CALLS.service)
        if self.storage is not None and self._security.is_node(connection):
            services.append(STORAGE_CALLS.service)
            identity = self.identity
        return calls.answer_hello(
            frame,
            node=self._settings.node.name,
            now_ms=self._clock.wall_ms(),
            services=services,
            identity=identity,
        )

    async def _flush_log(self) -> None:
        """Sums up lines that were suppressed because there were too many of them."""
        while True:
            await asyncio.sleep(FLUSH_MS / 1000)
            self._refusals.flush()

    # What the wire room reports

    def opened(self, connection: Connection) -> None:
        self._metrics.connections.inc()
        connection.stranger = self._security.is_stranger(connection)

    def closed(self, connection: Connection) -> None:
        self._metrics.connections.dec()

    def violation(self, connection: Connection, error: ProtocolViolation) -> None:
        self._metrics.violations.inc()
        kind = "violation" if connection.met else "handshake"
        self._refusals.report(kind, "connection closed", peer=connection.peer, why=str(error))

    def failed(self, connection: Connection, error: Exception) -> None:
        self._metrics.failures.inc()
        _log.error(
            "cannot answer a request: internal error", peer=connection.peer, error=repr(error)
        )

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        self._metrics.moved(bytes_in, bytes_out)
