"""What handlers use: the node from inside, and clients of the cluster from outside."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry

from dovetail.admin.attention import Attention
from dovetail.admin.dead.topics import DeadTopics
from dovetail.admin.kafka import Kafka
from dovetail.admin.outbox import OutboxDatabase
from dovetail.admin.pipelines import PipelineReports
from dovetail.admin.streams import Streams
from dovetail.clock import Clock
from dovetail.console.kafka_link import CALL_S_MAX, KafkaLink
from dovetail.console.rates import Rates
from dovetail.console.timeline_link import TimelineLink
from dovetail.console.web.audit import AuditLog
from dovetail.console.web.signing_in import SignIn
from dovetail.console.web.threads import Threads
from dovetail.errors import Unavailable
from dovetail.node.insight import Insight
from dovetail.node.overseer import ClusterReport
from dovetail.settings import Settings
from dovetail.timeline.receiver import Receiver


class ServedNode(Protocol):
    """A node, as far as it is served here."""

    @property
    def registry(self) -> CollectorRegistry: ...

    @property
    def insight(self) -> Insight | None:
        """None while the node starts."""
        ...

    def live(self) -> bool:
        """Whether the process can still do its work; False asks for a restart."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether clients should be sent here, and if not, why."""
        ...

    def unwell(self) -> list[str]:
        """What is not served here though other things are."""
        ...

    def cluster(self) -> ClusterReport | None:
        """The cluster as an overseer sees it; None on a node that is none."""
        ...


@dataclass(slots=True)
class Desk:
    """Everything that a handler may use; one for each node."""

    node: ServedNode
    settings: Settings
    clock: Clock
    sign_in: SignIn
    audit: AuditLog = field(init=False)
    threads: Threads = field(default_factory=Threads)
    kafka: KafkaLink = field(init=False)
    timelines: TimelineLink = field(init=False)
    #: None if the settings name no outbox.
    outbox: OutboxDatabase | None = field(init=False)
    outbox_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    #: Turns of the processes that read messages by their schemas.
    decoding: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    #: Callers who receive messages of timelines now.
    receivers: int = 0
    pipelines: PipelineReports = field(init=False)
    dead_topics: DeadTopics = field(init=False)
    streams: Streams = field(init=False)
    rates: Rates = field(default_factory=Rates)
    attention: Attention = field(default_factory=Attention)
    started_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self.audit = AuditLog(self.settings.node.data_dir, self.clock, self.threads)
        self.kafka = KafkaLink(self._make_kafka, self.threads)
        self.timelines = TimelineLink(
            lambda: self.insight.listener, lambda: self.insight.own_way, self.settings
        )
        database = self.settings.outbox.database
        self.outbox = OutboxDatabase(database) if database else None
        self.pipelines = PipelineReports(self.clock.wall_ms)
        self.dead_topics = DeadTopics(self.pipelines)
        self.streams = Streams(self.clock, self.settings.stream)
        self.started_ms = self.clock.monotonic_ms()

    @property
    def insight(self) -> Insight:
        """Raises `Unavailable` while the node starts."""
        found = self.node.insight
        if found is None:
            raise Unavailable("the node is starting; /readyz says what is missing")
        return found

    def _make_kafka(self) -> Kafka:
        """A client of the node's own Kafka listener. Raises `Unavailable`."""
        insight = self.insight
        return Kafka(
            insight.listener,
            timeout_s=CALL_S_MAX,
            client_id="dovetail-console",
            security=insight.own_way.kafka,
        )

    def receiver(self) -> Receiver:
        """Gives messages of timelines. Raises `Unavailable` where none are served."""
        found = self.insight.receiver
        if found is None:
            raise Unavailable(self.timelines.missing or "this node serves no timelines yet")
        return found

    def topic_ids(self) -> dict[str, str]:
        """The topics of users that exist, with their ids. Raises `Unavailable`."""
        return {
            facts.name: facts.id
            for facts in self.insight.topics()
            if facts.state == "ready" and not facts.internal
        }

    def rate(self, counter: str, value: float) -> float | None:
        """The growth of a counter a second, if it is known."""
        found = self.rates.seen(counter, value, now_ms=self.clock.monotonic_ms())
        return None if found is None else round(found, 2)

    async def close(self) -> None:
        """Ends all clients."""
        await self.timelines.close()
        await self.kafka.close()
        if self.outbox is not None:
            await self.threads.run(self.outbox.close)
        self.threads.close()
