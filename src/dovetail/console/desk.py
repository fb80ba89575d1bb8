"""What handlers work with: the node from inside, and clients of the cluster from outside."""

from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry

from dovetail.clock import Clock
from dovetail.console.kafka_link import ClientConfig, KafkaLink
from dovetail.console.nouns.dead_marks import DeadMarks
from dovetail.console.nouns.records import Reader
from dovetail.console.outbox_link import OutboxLink
from dovetail.console.pipeline_feed import PipelineFeed
from dovetail.console.rates import Rates
from dovetail.console.stream_feed import StreamFeed
from dovetail.console.timeline_link import TimelineLink
from dovetail.console.web.audit import AuditLog
from dovetail.console.web.signing_in import SignIn
from dovetail.console.web.threads import Threads
from dovetail.errors import Unavailable
from dovetail.node.insight import Insight
from dovetail.node.overseer import ClusterReport
from dovetail.settings import Settings


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
    reader: Reader = field(init=False)
    timelines: TimelineLink = field(init=False)
    outbox: OutboxLink = field(init=False)
    pipelines: PipelineFeed = field(init=False)
    streams: StreamFeed = field(init=False)
    marks: DeadMarks = field(init=False)
    rates: Rates = field(default_factory=Rates)
    started_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self.audit = AuditLog(self.settings.node.data_dir, self.clock, self.threads)
        self.kafka = KafkaLink(
            self._kafka_config,
            self.threads,
            owned=lambda partition: self.insight.owned(*partition),
        )
        self.timelines = TimelineLink(
            lambda: self.insight.listener, lambda: self.insight.own_way, self.settings
        )
        self.outbox = OutboxLink(self.settings.outbox.database, self.threads)
        self.reader = Reader(self.kafka)
        self.pipelines = PipelineFeed(self.kafka, self.reader, self.clock)
        self.streams = StreamFeed(self.kafka, self.reader, self.clock)
        self.marks = DeadMarks(self.kafka, self.reader, self.clock)
        self.started_ms = self.clock.monotonic_ms()

    @property
    def insight(self) -> Insight:
        """Raises `Unavailable` while the node starts."""
        found = self.node.insight
        if found is None:
            raise Unavailable("the node is starting; /readyz says what is missing")
        return found

    def _kafka_config(self) -> ClientConfig:
        """Where the node's Kafka door is, and how its own clients come in. Raises `Unavailable`."""
        return {"bootstrap.servers": self.insight.listener, **self.insight.own_way.kafka}

    def rate(self, counter: str, value: float) -> float | None:
        """The growth of a counter a second, if it is known."""
        found = self.rates.seen(counter, value, now_ms=self.clock.monotonic_ms())
        return None if found is None else round(found, 2)

    async def close(self) -> None:
        """Ends all clients."""
        await self.timelines.close()
        await self.kafka.close()
        await self.outbox.close()
        self.threads.close()
