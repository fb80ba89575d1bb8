"""A stored job: its id, and the place of its record."""

from typing import Self

from dovetail.kafka.client.client import Partition
from dovetail.teams.envelope import JobId


class Submitted(str):
    """The id of a job, which knows where its record lies and when it was stored."""

    place: Partition
    offset: int
    at_ms: int
    #: Whether the submitter chose the id; a new one repeats nothing.
    named: bool

    @classmethod
    def of(cls, job_id: JobId, place: Partition, offset: int, *, at_ms: int, named: bool) -> Self:
        """The job of this id, at this place."""
        made = cls(job_id)
        made.place, made.offset, made.at_ms, made.named = place, offset, at_ms, named
        return made

    @property
    def id(self) -> JobId:
        """The id alone."""
        return JobId(str(self))
