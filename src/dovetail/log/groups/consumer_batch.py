"""Changes of a group of the new protocol that are stored together, and who waits for that."""

from dataclasses import dataclass, field

from dovetail.log.groups.consumer_types import ConsumerHeader, ConsumerMember
from dovetail.log.groups.types import (
    Answer,
    ConsumerAnswer,
    GroupError,
    JoinAnswer,
    MemberId,
    SyncAnswer,
)


@dataclass(slots=True)
class Batch:
    """Changes that are stored together, and who waits for that."""

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
