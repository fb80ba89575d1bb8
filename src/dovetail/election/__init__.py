"""Elections: one of several members leads, under a term. Used by `stream` and `teams`.

The **shared log** is one order of records that all members see alike. The leader is the member that
claimed the highest term in it; what a leader writes under its term counts only until a higher claim
precedes it. An **election** decides who tries to claim, and when: by majority, by strength, or by a
lease. It only proposes: the log decides, and accepts each term once. So no clock, pause or network
split gives one term two leaders.

Left to others: a store that the leader writes to must check `Leadership.term`, if an old leader
must not write there.

    identifiers.py       member, term, position, algorithm
    fold.py              the records of the shared log, and the state they add up to; pure
    messages.py          the messages between members
    effects.py           the effects of an election
    election.py          what all algorithms share; pure
    majority.py          MAJORITY: more than half vote; pure
    bully.py             BULLY: the strongest leads; pure
    lease.py             COORDINATOR: the holder of a lease leads; pure
    watch.py             whether a follower still trusts the leader to be there; pure
    pinging.py           when the leader pings, and which members it reaches; pure
    signature.py         signed messages, each accepted once; pure
    settings.py          settings of the members
    shared_log.py        the contract of the shared log, and one in memory
    kafka_log.py         the shared log in a topic
    coordination_log.py  the shared log in keys of a coordination service
    kafka_client.py      configuration and polling thread of the Kafka clients
    transport.py         the contract of messages between members, and one in memory
    http_transport.py    messages over HTTP
    vote_file.py         term and vote on disk
    campaign.py          takes and holds the lease of COORDINATOR
    leadership.py        one term of one member, and what a member knows
    member.py            `ClusterMember`: performs what the election decides
    blocking.py          the same for programs without asyncio
    kafka_member.py      a member whose shared log is a topic
    metrics.py           the metrics of a member
"""

from dovetail.election.campaign import Campaigner
from dovetail.election.coordination_log import CoordinationSharedLog
from dovetail.election.election import Role, Times
from dovetail.election.http_transport import HttpSite, HttpTransport
from dovetail.election.identifiers import Algorithm, MemberName, Position, Term
from dovetail.election.kafka_log import KafkaSharedLog
from dovetail.election.kafka_member import member_on_kafka
from dovetail.election.leadership import Leadership, MemberStatus
from dovetail.election.member import ClusterMember
from dovetail.election.metrics import ElectionMetrics
from dovetail.election.settings import ElectionSettings
from dovetail.election.shared_log import MemoryLog, MemorySharedLog, SharedLog
from dovetail.election.transport import MemoryNetwork, MemoryTransport, Transport
from dovetail.election.vote_file import VoteFile

__all__ = [
    "Algorithm",
    "Campaigner",
    "ClusterMember",
    "CoordinationSharedLog",
    "ElectionMetrics",
    "ElectionSettings",
    "HttpSite",
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
    "Term",
    "Times",
    "Transport",
    "VoteFile",
    "member_on_kafka",
]
