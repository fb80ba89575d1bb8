"""A message or a dead letter in memory: what `memory.py` keeps of each."""

from dataclasses import dataclass

from dovetail.timeline.message import Leased, Life, MessageId, NewMessage, Shown, State, Version


@dataclass(slots=True)
class Row:
    """A message, or a dead letter (`died_ms` is set)."""

    id: MessageId
    message: NewMessage
    bucket: int
    visible_ms: int
    due_ms: int
    version: int = 0
    attempts: int = 0
    holder: str | None = None
    reason: str = ""
    died_ms: int = 0

    def free(self, now_ms: int) -> bool:
        return self.holder is None or self.visible_ms <= now_ms

    def shown(self, now_ms: int, state: State | None = None) -> Shown:
        if state is None:
            state = State.DUE
            if self.visible_ms > now_ms:
                state = State.WAITING if self.holder is None else State.LEASED

        message = self.message
        return Shown(
            self.id,
            Version(self.version),
            state,
            self.due_ms,
            self.visible_ms if state is not State.DEAD else self.died_ms,
            self.attempts,
            message.priority,
            self.bucket,
            message.body,
            message.headers,
            message.key,
            self.holder if state is not State.DEAD else None,
            self.reason,
            self.died_ms,
            message.order_key,
        )

    def leased(self) -> Leased:
        message = self.message
        return Leased(
            self.id,
            Version(self.version),
            self.due_ms,
            self.visible_ms,
            self.attempts,
            message.priority,
            self.bucket,
            message.body,
            message.headers,
            message.key,
            message.order_key,
            self.life.backoff_ms,
        )

    @property
    def life(self) -> Life:
        return self.message.life or Life()

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among those of its order key."""
        return self.due_ms, self.id
