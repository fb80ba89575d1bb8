"""The shared stream: one elected consumer among replicas.

Every replica of an application reads the same stream; one of them, the leader, handles the events.
When it is lost, another one takes over. The same elections are there without a stream, for
anything of which there must be one at a time (`ClusterMember`).

The theory, in three sentences. The **shared log** is one order of records that all replicas see
alike; a leader is who claimed the highest term in it, and what it writes under that term counts
only until a higher claim stands before it (`fold`). An **election** says who tries to claim,
and when: by majority, by strength, or by a lease (`majority`, `bully`, `lease`). A **delivery**
hands an event to the handler only after the log accepted a report written after the event came, so
that no clock, no pause and no split lets two replicas handle it under two terms (`delivery`).

    identifiers  fold  messages          words, records and what they mean, messages    pure
    election  majority  bully  lease     who tries to lead                               pure
    watch  pinging                       is the leader there; whom does it reach         pure
    delivery                             which events are handled, and when they count   pure
    signature  settings                  seals; what can be set                          pure
    shared_log  kafka_log  coordination_log        the log: memory, topic, keys
    transport  http_transport  endpoint  health    messages: memory, HTTP; the web server
    vote_file  campaign  member  leadership        votes on disk, the lease, one member
    source  kafka_source  handler  filter          events: memory, topic; robust calls
    stream  metrics                                all of it put together

What is left to others: the store that a handler writes to must check the term, if an effect must
not come from an old leader; it is in `Leadership.term`.
"""

from dovetail.election.campaign import Campaigner
from dovetail.election.coordination_log import CoordinationSharedLog
from dovetail.election.election import Role, Times
from dovetail.election.http_transport import HttpTransport
from dovetail.election.identifiers import Algorithm, MemberName, Position, Takeover, Term
from dovetail.election.kafka_log import KafkaSharedLog
from dovetail.election.leadership import Leadership, MemberStatus
from dovetail.election.member import ClusterMember
from dovetail.election.metrics import StreamMetrics
from dovetail.election.settings import StreamSettings
from dovetail.election.shared_log import MemoryLog, MemorySharedLog, SharedLog
from dovetail.election.transport import MemoryNetwork, MemoryTransport, Transport
from dovetail.election.vote_file import VoteFile
from dovetail.stream.filter import LeaderEventFilter, OnlyLeader
from dovetail.stream.handler import Handler, RobustStreamHandler, StreamHandler
from dovetail.stream.kafka_source import KafkaSource
from dovetail.stream.source import Event, MemorySource, Source
from dovetail.stream.stream import SharedStream

__all__ = [
    "Algorithm",
    "Campaigner",
    "ClusterMember",
    "CoordinationSharedLog",
    "Event",
    "Handler",
    "HttpTransport",
    "KafkaSharedLog",
    "KafkaSource",
    "LeaderEventFilter",
    "Leadership",
    "MemberName",
    "MemberStatus",
    "MemoryLog",
    "MemoryNetwork",
    "MemorySharedLog",
    "MemorySource",
    "MemoryTransport",
    "OnlyLeader",
    "Position",
    "RobustStreamHandler",
    "Role",
    "SharedLog",
    "SharedStream",
    "Source",
    "StreamHandler",
    "StreamMetrics",
    "StreamSettings",
    "Takeover",
    "Term",
    "Times",
    "Transport",
    "VoteFile",
]
