"""A member of a group, and how members agree on a protocol.

A member waits in at most one request of each kind. `join_token` set means that it takes part in the
rebalance that is being prepared; `sync_token` set means that it waits for the leader.
"""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dovetail.log.groups.types import (
    InstanceId,
    JoinedMember,
    JoinRequest,
    MemberDescription,
    MemberId,
    MemberProtocol,
    MemberSnapshot,
)


@dataclass(slots=True)
class Member:
    """One member, as long as the group knows it under this id."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    #: It waits for its first generation; it cannot send heartbeats, for it has no generation.
    is_new: bool = False
    #: It asked for the assignment of the current generation.
    synced: bool = False
    join_token: object | None = None
    sync_token: object | None = None
    session_deadline_ms: float = 0.0

    def renew(self, now_ms: float) -> None:
        """Restarts the session."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms

    @property
    def session_counts(self) -> bool:
        """Whether silence is held against it: a member that waits for us is not silent."""
        return self.is_new or (self.join_token is None and self.sync_token is None)

    def update(self, request: JoinRequest) -> None:
        """Takes over what a new join says."""
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.client_id = request.client_id
        self.client_host = request.client_host

    def metadata(self, protocol: str | None) -> bytes:
        """What it says about itself for `protocol`; nothing if it does not offer it."""
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    def joined(self, protocol: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def described(self, protocol: str | None, *, stable: bool) -> MemberDescription:
        return MemberDescription(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol) if stable else b"",
            self.assignment if stable else b"",
        )

    def snapshot(self, assignment: bytes) -> MemberSnapshot:
        return MemberSnapshot(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            assignment,
        )


def member_from_request(member_id: MemberId, request: JoinRequest) -> Member:
    """A new member as its join describes it."""
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        is_new=True,
    )


def member_from_snapshot(kept: MemberSnapshot, *, synced: bool) -> Member:
    """A member as it was stored."""
    return Member(
        kept.member_id,
        kept.instance_id,
        kept.client_id,
        kept.client_host,
        kept.session_timeout_ms,
        kept.rebalance_timeout_ms,
        kept.protocols,
        kept.assignment,
        synced=synced,
    )


def common_protocols(offers: Collection[tuple[MemberProtocol, ...]]) -> set[str]:
    """The names that every offer has; empty when there is no offer."""
    sets = [{protocol.name for protocol in offer} for offer in offers]
    return set.intersection(*sets) if sets else set()


def elect_protocol(offers: Sequence[tuple[MemberProtocol, ...]]) -> str:
    """The protocol with the most votes among those that all support.

    Each member votes for the first that it offers and all support. A tie goes to the one that
    was voted for first, so that the same members always get the same protocol.

    Raises `ValueError` if there is none; joins are refused before that can happen.
    """
    candidates = common_protocols(offers)
    votes: dict[str, int] = {}
    for offer in offers:
        vote = next((p.name for p in offer if p.name in candidates), None)
        if vote is None:
            raise ValueError(f"{len(offers)} members have no protocol in common")
        votes[vote] = votes.get(vote, 0) + 1
    return max(votes, key=votes.__getitem__)


def random_member_id(prefix: str) -> MemberId:
    """A member id as Kafka makes them: who it is, and a number that no other has."""
    return MemberId(f"{prefix}-{uuid.uuid4()}")


def no_subscription(_protocol_type: str, _metadata: bytes) -> frozenset[str] | None:
    """Reads no subscription: every group then counts as subscribed to everything."""
    return None
