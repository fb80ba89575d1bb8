"""The shared stream: one elected consumer among replicas.

Every replica of an application reads the same stream; one of them, the leader, handles the events.
When it is lost, another takes over. `dovetail.election` decides who leads. It also works without a
stream, for anything of which there must be one at a time (`ClusterMember`).

A **delivery** hands an event to the handler only after the shared log accepted a report that was
written after the event arrived. So no clock, pause or network split lets two replicas handle it
under two terms.

Left to others: the store that a handler writes to must check `Leadership.term`, if an old leader
must not write there.

    delivery.py      which events are handled, and when they count as done; pure
    settings.py      settings of a replica
    source.py        the contract of a source, the type of an event, and a source in memory
    kafka_source.py  a topic as a source
    handler.py       a reader that reopens its source; a handler whose errors are isolated
    retrying.py      attempts of a failing event, and when it is given up; pure
    dead_letters.py  sets such events aside
    filter.py        which events the handler sees
    stream.py        `SharedStream`: assembles the parts
    blocking.py      the same for programs without asyncio
    health.py        `/health` and `/metrics` of a replica
    metrics.py       the metrics of a replica
"""

from dovetail.election import Algorithm, ClusterMember, Leadership, MemberStatus, Position, Term
from dovetail.election.blocking import BlockingLeadership, BlockingMember
from dovetail.stream.blocking import BlockingStream
from dovetail.stream.dead_letters import DeadLetters, KafkaDeadLetters, MemoryDeadLetters
from dovetail.stream.filter import LeaderEventFilter, OnlyLeader, Verdict
from dovetail.stream.handler import Handler, RobustStreamHandler, StreamHandler
from dovetail.stream.kafka_source import KafkaSource
from dovetail.stream.metrics import StreamMetrics
from dovetail.stream.settings import StreamSettings, Takeover
from dovetail.stream.source import Event, MemorySource, Source
from dovetail.stream.stream import SharedStream

__all__ = [
    "Algorithm",
    "BlockingLeadership",
    "BlockingMember",
    "BlockingStream",
    "ClusterMember",
    "DeadLetters",
    "Event",
    "Handler",
    "KafkaDeadLetters",
    "KafkaSource",
    "LeaderEventFilter",
    "Leadership",
    "MemberStatus",
    "MemoryDeadLetters",
    "MemorySource",
    "OnlyLeader",
    "Position",
    "RobustStreamHandler",
    "SharedStream",
    "Source",
    "StreamHandler",
    "StreamMetrics",
    "StreamSettings",
    "Takeover",
    "Term",
    "Verdict",
]
