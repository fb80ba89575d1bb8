"""A member of a group of the new protocol, as decided; the stored state may lag behind."""

from dataclasses import dataclass

from dovetail.log.groups.assignors import Assignment
from dovetail.log.groups.consumer_types import ClassicPart, ConsumerMember
from dovetail.log.groups.types import InstanceId, MemberId

NOTHING: Assignment = frozenset()


@dataclass(slots=True)
class Member:
    """A member as it is decided, which may not be stored yet."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    assignor: str | None = None
    names: frozenset[str] = frozenset()
    pattern: str | None = None
    epoch: int = 0
    epoch_before: int = 0
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    target: Assignment = NOTHING

    classic: ClassicPart | None = None

    session_ms: float = 0.0
    #: When it must have given up what it has to; None if it has nothing to give up.
    revoke_ms: float | None = None

    def kept(self) -> ConsumerMember:
        """What is stored of it."""
        return ConsumerMember(
            self.member_id,
            self.instance_id,
            self.rack,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.assignor,
            tuple(sorted(self.names)),
            self.pattern,
            self.epoch,
            self.epoch_before,
            tuple(sorted(self.assigned)),
            tuple(sorted(self.revoking)),
            tuple(sorted(self.target)),
            self.classic,
        )

    @classmethod
    def restored(cls, kept: ConsumerMember) -> "Member":
        """As it was stored."""
        return cls(
            kept.member_id,
            kept.instance_id,
            kept.rack,
            kept.client_id,
            kept.client_host,
            kept.rebalance_timeout_ms,
            kept.assignor,
            frozenset(kept.names),
            kept.pattern,
            kept.epoch,
            kept.epoch_before,
            frozenset(kept.assigned),
            frozenset(kept.revoking),
            frozenset(kept.target),
            kept.classic,
        )
