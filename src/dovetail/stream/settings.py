"""What can be set for a replica of a shared stream: its elections, and its share of the stream."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from dovetail.election.settings import ElectionSettings
from dovetail.errors import InvalidSetting


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

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        return replace(super().of(values), takeover=Takeover(values["takeover"]))

    def check(self) -> None:
        """Raises `InvalidSetting` for a value that cannot work."""
        super().check()
        if self.batch_events_max < 1 or self.report_interval_ms < 1:
            raise InvalidSetting("batch_events_max and report_interval_ms must be above 0")
