"""A journal of groups that lives as long as the test."""

from collections.abc import AsyncIterator, Sequence

from dovetail.log.groups.journal import JournalRecord


class MemoryGroupJournal:
    """Keeps what is appended, in order."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []

    async def append(self, records: Sequence[JournalRecord]) -> None:
        self.records.extend(records)

    async def replay(self) -> AsyncIterator[JournalRecord]:
        """Everything that was appended, in order."""
        for record in tuple(self.records):
            yield record
