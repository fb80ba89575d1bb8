"""Appends to the journal of groups, in order, many at a time.

Each append is a task of its own. Tasks start in the order of their creation, so the journal sees
the appends in the order of the calls, and a caller that goes away stops nothing. What an append
changes in memory is done in `then`, which runs in journal order before anybody is told.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from dovetail.errors import DovetailError, NotOwner, Refused
from dovetail.log.groups.journal import GroupJournal, JournalRecord
from dovetail.log.groups.types import GroupError

_log = logging.getLogger(__name__)


class JournalWriter:
    """Appends of one coordinator that are under way."""

    def __init__(self, journal: GroupJournal) -> None:
        self._journal = journal
        self._in_flight: dict[asyncio.Task[None], Sequence[JournalRecord]] = {}
        #: Who waits, in order: a set would make simulations depend on addresses.
        self._waiting: dict[asyncio.Future[GroupError], None] = {}

    def append(
        self, records: Sequence[JournalRecord], then: Callable[[GroupError], None]
    ) -> asyncio.Future[GroupError]:
        """Begins to store the records; `then` is called with the outcome, always before the
        future has it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[GroupError] = loop.create_future()
        self._waiting[done] = None
        done.add_done_callback(self._waiting.pop)
        task = loop.create_task(self._run(records, then, done))
        self._in_flight[task] = records
        task.add_done_callback(report_failure)
        return done

    def records_in_flight(self) -> list[JournalRecord]:
        """What is not known to be stored yet, in order."""
        return [record for records in self._in_flight.values() for record in records]

    async def settled(self) -> None:
        """Returns when everything that is on its way now has its outcome."""
        if self._waiting:
            await asyncio.wait(tuple(self._waiting))

    async def close(self) -> None:
        """Who waits is told that the coordinator is elsewhere; appends may or may not be stored."""
        for done in tuple(self._waiting):
            if not done.done():
                done.set_result(GroupError.NOT_COORDINATOR)
        tasks = tuple(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self,
        records: Sequence[JournalRecord],
        then: Callable[[GroupError], None],
        done: asyncio.Future[GroupError],
    ) -> None:
        error = GroupError.NOT_COORDINATOR
        try:
            error = await self._attempt(records)
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._in_flight.pop(task, None)
        try:
            then(error)
        finally:
            if not done.done():
                done.set_result(error)

    async def _attempt(self, records: Sequence[JournalRecord]) -> GroupError:
        if not records:
            return GroupError.NONE
        try:
            await self._journal.append(records)
        except (NotOwner, Refused) as error:
            _log.warning("group journal has another owner: %s", error)
            return GroupError.NOT_COORDINATOR
        except (DovetailError, OSError) as error:
            _log.warning("group journal did not store %d records: %s", len(records), error)
            return GroupError.COORDINATOR_NOT_AVAILABLE
        return GroupError.NONE


def report_failure(task: asyncio.Task[None]) -> None:
    """Logs what a background task died of; only a broken invariant can get here."""
    if not task.cancelled() and task.exception() is not None:
        _log.critical("a task of the group coordinator died", exc_info=task.exception())
