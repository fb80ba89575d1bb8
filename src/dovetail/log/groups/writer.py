"""Appends to the journal of groups, in order, many at a time.

Each append is a task. Tasks start in the order of their creation, so the journal sees the appends
in the order of the calls, and a caller that disconnects stops nothing. `then` applies an append to
memory; it runs in journal order before any caller is answered.
"""

import asyncio
from collections.abc import Callable, Sequence

from dovetail.background import start_task
from dovetail.errors import DovetailError, NotOwner, Refused
from dovetail.log.groups.journal import GroupJournal, JournalRecord
from dovetail.log.groups.types import GroupError
from dovetail.logging import get_logger

_log = get_logger("log.groups")


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
        done: asyncio.Future[GroupError] = asyncio.get_running_loop().create_future()
        self._waiting[done] = None
        done.add_done_callback(self._waiting.pop)
        task = start_task(self._run(records, then, done), name="log/groups/append")
        self._in_flight[task] = records
        return done

    def records_in_flight(self) -> list[JournalRecord]:
        """What is not known to be stored yet, in order."""
        return [record for records in self._in_flight.values() for record in records]

    @property
    def is_waited_for(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._waiting)

    async def settled(self) -> None:
        """Returns when everything that is on its way now has its outcome."""
        if self._waiting:
            await asyncio.wait(tuple(self._waiting))

    async def close(self) -> None:
        """Answers waiting requests NOT_COORDINATOR; their appends may be stored or not."""
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
            _log.warning("the group journal has another owner now", error=str(error))
            return GroupError.NOT_COORDINATOR
        except (DovetailError, OSError) as error:
            _log.warning("cannot append to a group journal", records=len(records), error=str(error))
            return GroupError.COORDINATOR_NOT_AVAILABLE
        except Exception as error:  # noqa: BLE001 - whoever waits gets an answer after a defect too
            _log.exception("cannot append to a group journal: internal error", error)
            return GroupError.COORDINATOR_NOT_AVAILABLE
        return GroupError.NONE
