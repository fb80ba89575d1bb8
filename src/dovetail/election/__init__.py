"""Elections: of several members one leads, under a term."""

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

__all__ = [
    "Algorithm",
    "Campaigner",
    "ClusterMember",
    "CoordinationSharedLog",
    "HttpTransport",
    "KafkaSharedLog",
    "Leadership",
    "MemberName",
    "MemberStatus",
    "MemoryLog",
    "MemoryNetwork",
    "MemorySharedLog",
    "MemoryTransport",
    "Position",
    "Role",
    "SharedLog",
    "StreamMetrics",
    "StreamSettings",
    "Takeover",
    "Term",
    "Times",
    "Transport",
    "VoteFile",
]
