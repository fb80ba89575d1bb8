"""Consumer groups: identifiers, limits, requests, answers and effects.

Nothing here decides anything; see `group` for the protocol and `offsets` for positions. Errors are
this room's own; the Kafka handlers map each to one of Kafka's codes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType

import msgspec

from dovetail.log.share.types import ShareSettings

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
InstanceId = NewType("InstanceId", str)
Generation = NewType("Generation", int)

#: What a member sends that has no id yet, and what a commit from outside the group carries.
NO_MEMBER = MemberId("")
#: What a commit carries that comes from outside the group.
NO_GENERATION = Generation(-1)

#: Reads (protocol type, member metadata) and answers the topics that the member subscribed to,
#: or None when these bytes are no subscription. Metadata is opaque in this room.
SubscriptionReader = Callable[[str, bytes], frozenset[str] | None]

#: Makes a member id that was never used before; the argument says for whom (client or instance).
MemberIdSource = Callable[[str], MemberId]


class GroupError(Enum):
    """Outcome of a request to a group; `NONE` is success."""

    NONE = "none"
    UNKNOWN_MEMBER = "unknown member"
    ILLEGAL_GENERATION = "illegal generation"
    REBALANCE_IN_PROGRESS = "rebalance in progress"
    INCONSISTENT_PROTOCOL = "inconsistent protocol"
    MEMBER_ID_REQUIRED = "member id required"
    FENCED_INSTANCE = "fenced instance"
    GROUP_ID_NOT_FOUND = "group id not found"
    NON_EMPTY_GROUP = "non-empty group"
    INVALID_SESSION_TIMEOUT = "invalid session timeout"
    GROUP_SUBSCRIBED_TO_TOPIC = "group subscribed to topic"
    GROUP_MAX_SIZE = "group max size"
    INVALID_GROUP_ID = "invalid group id"
    OFFSET_METADATA_TOO_LARGE = "offset metadata too large"
    COORDINATOR_LOADING = "coordinator loading"
    COORDINATOR_NOT_AVAILABLE = "coordinator not available"
    NOT_COORDINATOR = "not coordinator"
    FORBIDDEN = "forbidden"
    STALE_MEMBER_EPOCH = "stale member epoch"
    FENCED_MEMBER_EPOCH = "fenced member epoch"
    UNRELEASED_INSTANCE = "unreleased instance"
    UNSUPPORTED_ASSIGNOR = "unsupported assignor"
    INVALID_PATTERN = "invalid pattern"
    INVALID_REQUEST = "invalid request"
    TRANSACTION_ENDED = "transaction ended"


class GroupState(Enum):
    """Where a group stands; the table of transitions is in `group`."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    #: Of groups of the new protocol: the target is to be computed; members are on their way to it.
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Of a group of the new protocol: how often its members beat, and when one is gone."""

    heartbeat_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000


#: The limits of a group of the new protocol.
ConsumerLimitsOf = Callable[["GroupId"], ConsumerLimits]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits of groups. Defaults are Kafka's unless a reason is given."""

    #: Shorter sessions turn a slow network into rebalances; longer ones hide dead members.
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    #: How long the first generation of an empty group waits for more members; starts anew with
    #: each that comes. Kafka waits 3 s, which every test and every restart then pays. 200 ms is
    #: enough for members that one deployment starts together, and a later one costs a rebalance.
    initial_rebalance_delay_ms: int = 200
    #: A new member that waits longer than this for its first generation must ask again, so that
    #: abandoned first joins do not add up during a long rebalance.
    new_member_join_timeout_ms: int = 300_000
    #: Kafka has no limit. A classic rebalance waits for every member, and a leader's assignment
    #: travels in one frame: beyond this neither works well.
    group_size_max: int = 1_000
    #: Of the new protocol, unless the group has its own.
    consumer: ConsumerLimits = field(default_factory=ConsumerLimits)
    #: Most members of a share group, and what its limits are unless the group has its own.
    share_size_max: int = 200
    share: ShareSettings = field(default_factory=ShareSettings)
    #: Longest text that a commit can carry for one partition.
    offset_metadata_bytes_max: int = 4_096
    #: Positions of a group without members are kept this long.
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    #: How often expired positions are looked for.
    retention_check_interval_ms: int = 600_000


class PartitionKey(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class MemberIdentity(NamedTuple):
    """How a member names itself in a request."""

    member_id: MemberId
    instance_id: InstanceId | None = None


class MemberProtocol(NamedTuple):
    """A way to assign that a member offers, with what it says about itself for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member asks to be part of the next generation.

    `member_id_required`: the client can be asked to join again with an id (JoinGroup 4 and later).
    `skip_assignment_supported`: it knows leaders that must not assign (JoinGroup 9 and later).
    """

    member_id: MemberId
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: InstanceId | None = None
    client_id: str = ""
    client_host: str = ""
    member_id_required: bool = True
    skip_assignment_supported: bool = False


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader gets to know about a member."""

    member_id: MemberId
    instance_id: InstanceId | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The generation a member is part of; only its leader gets `members`."""

    error: GroupError
    member_id: MemberId
    generation: Generation = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = NO_MEMBER
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everybody's.

    `protocol_type` and `protocol` are compared with the group's when they are given.
    """

    member: MemberIdentity
    generation: Generation
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """A member's assignment."""

    error: GroupError
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveOutcome:
    """What became of one member of a request to leave."""

    member: MemberIdentity
    error: GroupError


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member, as an administrator sees it; metadata and assignment only of stable groups."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, as an administrator sees it."""

    group_id: GroupId
    state: GroupState
    generation: Generation
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    """A position of a group in a partition; `committed_wall_ms` is when it was stored.

    It is stored in this order.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_wall_ms: int


class TransactionOf(NamedTuple):
    """The transaction that positions are part of: its producer, and its number."""

    producer_id: int
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A position that a member wants stored; `leader_epoch` is -1 when it does not know."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetFetchAnswer:
    """The stored positions that were asked for; what has none is not in it."""

    error: GroupError
    offsets: Mapping[PartitionKey, CommittedOffset]
    #: Those for which a transaction has a position that is not decided.
    unstable: frozenset[PartitionKey] = frozenset()


@dataclass(frozen=True, slots=True)
class OffsetDeleteAnswer:
    """What became of each position; nothing if the whole request was refused."""

    error: GroupError
    outcomes: Mapping[PartitionKey, GroupError]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    group_id: GroupId
    protocol_type: str
    state: GroupState
    #: "classic", "consumer" of the new protocol, or "share".
    kind: str = "classic"


@dataclass(frozen=True, slots=True)
class ConsumerAnswer:
    """The answer to a member of the new protocol; no `assignment` means no change."""

    error: GroupError
    message: str | None = None
    member_id: MemberId = NO_MEMBER
    epoch: int = 0
    interval_ms: int = 0
    #: Topics by id, and numbers of partitions.
    assignment: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: answer the waiting request that came with `token`, which is opaque to the group."""

    token: object
    answer: JoinAnswer | SyncAnswer | ConsumerAnswer


class MemberSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a member across a restart; it is stored in this order."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes


class GroupSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a group across a restart; it is stored in this order.

    `assigned` is false from the start of a generation until its leader's assignment is stored.
    """

    generation: Generation
    protocol_type: str | None
    protocol: str | None
    leader: MemberId | None
    assigned: bool
    members: tuple[MemberSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Persist:
    """Effect: store the snapshot, then call `Group.persisted` or `Group.persist_failed`.

    Snapshots must be stored in the order of their effects.
    """

    ticket: int
    snapshot: GroupSnapshot


Effect = Answer | Persist
