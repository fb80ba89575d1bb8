"""Settings for a replica of a shared stream: its elections, and its part in the stream."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from dovetail.election.settings import ElectionSettings
from dovetail.errors import InvalidSetting
from dovetail.foreign import check_topic
from dovetail.stream.dead_letters import ENDING
from dovetail.stream.retrying import Retries


class Takeover(Enum):
    """Where a new leader begins."""

    #: With what comes after it was chosen, as the source of this design does.
    SKIP = "skip"
    #: Where the last leader's committed position is.
    RESUME = "resume"


@dataclass(frozen=True)
class StreamSettings(ElectionSettings):
    """The settings of one replica; only the endpoint differs between replicas."""

    #: Whether `async with` also starts to consume; else `start` does.
    start_immediately: bool = True
    takeover: Takeover = Takeover.SKIP
    #: Most events between two reports to the shared log.
    batch_events_max: int = 500
    #: Longest time between two reports while events are handled.
    report_interval_ms: int = 1_000
    #: How often an event is handled whose handler raises; and the pauses between, doubled each time
    #: from the first to the longest. Events behind it wait.
    attempts_max: int = 1
    retry_ms: int = 1_000
    retry_ms_max: int = 60_000
    #: Topic of events whose last attempt failed; empty: they are logged, and over.
    dead_letters_topic: str = ""

    @property
    def retries(self) -> Retries:
        """How often an event is tried."""
        return Retries(self.attempts_max, self.retry_ms, self.retry_ms_max)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        return replace(super().of(values), takeover=Takeover(values["takeover"]))

    def check(self) -> None:
        """Raises `InvalidSetting` for a value that cannot work."""
        super().check()
        if self.batch_events_max < 1 or self.report_interval_ms < 1:
            raise InvalidSetting("batch_events_max and report_interval_ms must be above 0")
        if self.attempts_max < 1 or not 1 <= self.retry_ms <= self.retry_ms_max:
            raise InvalidSetting(
                f"attempts_max = {self.attempts_max}, retry_ms = {self.retry_ms} and retry_ms_max ="
                f" {self.retry_ms_max}: all must be above 0, and retry_ms at most retry_ms_max"
            )
        topic = self.dead_letters_topic
        if topic and (check_topic(topic) != topic or not topic.endswith(ENDING)):
            raise InvalidSetting(
                f"dead_letters_topic {topic!r} must end in {ENDING}, by which the console and "
                f"`dovetail stream dead` know such a topic; for example {topic}{ENDING}"
            )
