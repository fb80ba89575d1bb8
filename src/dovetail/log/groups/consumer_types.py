"""Consumer groups of the new protocol (KIP-848): requests, answers, stored forms."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from dovetail.log.groups.assignors import Assignment
from dovetail.log.groups.types import (
    Answer,
    ConsumerAnswer,
    GroupError,
    GroupId,
    GroupState,
    InstanceId,
    JoinAnswer,
    MemberId,
    SyncAnswer,
)

#: What a member sends to join, to leave, and to leave for a moment as a static member.
JOINING = 0
LEAVING = -1
LEAVING_FOR_NOW = -2


class TopicView(Protocol):
    """The topics of the cluster, as groups need to know them."""

    @property
    def version(self) -> int:
        """Another number whenever topics or their partitions have changed."""
        ...

    def facts(self, name: str) -> tuple[str, int] | None:
        """The id of a topic and its number of partitions."""
        ...

    def names(self) -> Iterable[str]:
        """All topics that clients see."""
        ...


class NoTopics:
    """A cluster without topics."""

    version = 0

    def facts(self, name: str) -> tuple[str, int] | None:
        return None

    def names(self) -> Iterable[str]:
        return ()


class MemberFormats(Protocol):
    """How members of the classic protocol write what they want and have; topics go by name."""

    def subscription(
        self, metadata: bytes
    ) -> tuple[frozenset[str], frozenset[tuple[str, int]]] | None:
        """The topics that a member wants and the partitions that it has; None: not a consumer's."""
        ...

    def assigned(self, assignment: bytes) -> frozenset[tuple[str, int]]:
        """The partitions of an assignment."""
        ...

    def assignment(self, parts: Iterable[tuple[str, int]]) -> bytes:
        """The assignment of these partitions."""
        ...


class NoFormats:
    """Reads nothing: members of the classic protocol then cannot be in such a group."""

    def subscription(
        self, metadata: bytes
    ) -> tuple[frozenset[str], frozenset[tuple[str, int]]] | None:
        return None

    def assigned(self, assignment: bytes) -> frozenset[tuple[str, int]]:
        return frozenset()

    def assignment(self, parts: Iterable[tuple[str, int]]) -> bytes:
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerBeat:
    """A member's heartbeat. None means: as it was when it was last told."""

    member_id: MemberId
    epoch: int
    instance_id: InstanceId | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""


class ConsumerHeader(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a group; it is stored in this order.

    `target_epoch` is the epoch for which the members' targets were computed, by `assignor`, for the
    topics of the checksum `topics`.
    """

    epoch: int
    target_epoch: int
    assignor: str
    topics: int


class ClassicPart(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a member besides if it speaks the classic protocol."""

    session_timeout_ms: int
    #: The assignor that it offered first; nobody runs it, but its client wants to hear it.
    protocol: str


class ConsumerMember(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a member; it is stored in this order."""

    member_id: MemberId
    instance_id: InstanceId | None
    rack: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    assignor: str | None
    names: tuple[str, ...]
    pattern: str | None
    epoch: int
    epoch_before: int
    #: What it may read, what it has to give up first, and what it is to have in the end.
    assigned: tuple[tuple[str, int], ...]
    revoking: tuple[tuple[str, int], ...]
    target: tuple[tuple[str, int], ...]
    classic: ClassicPart | None = None


@dataclass(frozen=True, slots=True)
class ConsumerPersist:
    """Effect: store these, in one append, then call `ConsumerGroup.written`; None removes one."""

    header: ConsumerHeader
    members: Mapping[MemberId, ConsumerMember | None]


ConsumerEffect = Answer | ConsumerPersist


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A group, as an administrator sees it."""

    group_id: GroupId
    state: GroupState
    header: ConsumerHeader
    members: tuple[ConsumerMember, ...]


@dataclass(slots=True)
class Batch:
    """Changes that are stored together, and the requests that wait for that."""

    members: dict[MemberId, ConsumerMember | None] = field(default_factory=dict)
    header: bool = False
    waiting: list[Answer] = field(default_factory=list)
    sent: ConsumerHeader | None = None

    @property
    def empty(self) -> bool:
        return not self.members and not self.header


def failed(waiting: Answer, error: GroupError) -> Answer:
    """The same request, answered with an error."""
    answer = waiting.answer
    if isinstance(answer, JoinAnswer):
        return Answer(waiting.token, JoinAnswer(error, answer.member_id))
    if isinstance(answer, SyncAnswer):
        return Answer(waiting.token, SyncAnswer(error))
    return Answer(waiting.token, ConsumerAnswer(error))
