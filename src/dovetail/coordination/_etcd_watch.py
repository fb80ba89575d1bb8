"""A watch on etcd that outlives its connections.

Promise: each revision after the given one that touches the prefix, once, in order and whole, or
`WatchGap`; whatever happens to connections and members in between.

A task reads the stream and gathers whole revisions; the position is that of the last one gathered,
and a new stream begins right behind it.

    connecting --created--> following --events, progress--> following
        ^                       |
        +--stream lost, silent--+          the next member, after a pause
                                +--compacted, foreign history--> ended with WatchGap

Silence: a member that is paused or cut off sends nothing, and neither does one without news. So
after a while without a message the watch reads a key from the same member over the same connection,
and leaves the member when no answer comes. (Asking the stream itself for its progress would not
work: etcd stays silent when the watch begins at a revision that is still to come, which is how a
watch begins; see its pull request 20229.)

Progress: etcd periodically reports how far a quiet watch has come, in order with the events, and
the position follows, so that a compaction behind it does no harm. Only these messages count. Those
that a client can request could overtake events before etcd 3.5.8 (its issue 15220).

A reader that is too slow fills a bounded buffer. Then the stream is not read any further, etcd
keeps the rest in its history, and if that is compacted the reader gets `WatchGap`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import grpc

from dovetail.background import start_task
from dovetail.coordination._etcd_members import PAUSE_S_MAX, PAUSE_S_MIN, Member, Members
from dovetail.coordination._etcd_messages import Messages
from dovetail.coordination.protocol import Revision, WatchEvent
from dovetail.errors import CoordinationDown, WatchGap
from dovetail.logging import get_logger

_log = get_logger("coordination")

#: Bytes of keys and values that wait for the reader of a watch; above it the stream waits.
BUFFER_BYTES_MAX = 8 * 1024 * 1024
#: What an event costs beside its key and value, so that many small ones are limited as well.
_EVENT_BYTES = 200


class _StreamLost(Exception):
    """This stream is over; another one may continue."""


class _Unreached(_StreamLost):
    """There was no stream: the member cannot be reached."""


class Gathering:
    """Puts the revisions of a stream together, and knows how far it has come; pure."""

    def __init__(self, prefix: str, *, after: Revision) -> None:
        self._prefix = prefix
        self.position = after
        self._open: list[WatchEvent] = []

    def begin(self) -> None:
        """A new stream begins behind the position; a part of a revision is sent again."""
        self._open.clear()

    def add(self, events: Iterable[WatchEvent], *, more: bool) -> list[tuple[WatchEvent, ...]]:
        """Takes the events of one message; the revisions that are whole now.

        `more` says that the message is a fragment, so that its last revision may go on in the
        next one. Raises `WatchGap` if the order is broken.
        """
        whole = []
        for event in events:
            floor = self._open[0].revision if self._open else self.position + 1
            if event.revision < floor:
                raise WatchGap(
                    f"watch of {self._prefix!r}: etcd sent revision {event.revision} of "
                    f"{event.key!r} after {floor - 1} was complete; read the range again"
                )
            if self._open and event.revision > floor:
                whole.append(self._close())
            self._open.append(event)
        if self._open and not more:
            whole.append(self._close())
        return whole

    def progress(self, revision: Revision) -> None:
        """etcd has sent everything up to this revision."""
        if not self._open:
            self.position = max(self.position, revision)

    def _close(self) -> tuple[WatchEvent, ...]:
        events = tuple(self._open)
        self._open.clear()
        self.position = events[0].revision
        return events


class Watch:
    """The iterator that a watch gives its reader, and the task that feeds it."""

    def __init__(
        self,
        members: Members,
        messages: Messages,
        prefix: str,
        *,
        after: Revision,
        silence_ms: int,
    ) -> None:
        self._members = members
        self._messages = messages
        self._prefix = prefix
        self._silence_s = silence_ms / 1000
        self._gathering = Gathering(prefix, after=after)
        self._cluster_id: int | None = None
        self._waiting: deque[tuple[WatchEvent, ...]] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feeder: asyncio.Task[None] | None = None
        self._pause_s = PAUSE_S_MIN
        self._down: str | None = None

    @property
    def position(self) -> Revision:
        """All changes up to this revision have been taken from etcd."""
        return self._gathering.position

    async def open(self) -> None:
        """Returns when etcd has acknowledged the watch. Raises `CoordinationDown` if none does."""
        feeder = start_task(
            self._feed(),
            name="coordination/etcd-watch",
            of=self._prefix,
            expected=(CoordinationDown, WatchGap),
        )
        feeder.add_done_callback(lambda _: self._changed.set())
        self._feeder = feeder
        await asyncio.wait(
            {feeder, self._created},
            timeout=self._members.request_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )

        if self._down is not None:
            raise CoordinationDown(self._down)
        if feeder.done() and isinstance(feeder.exception(), CoordinationDown):
            await feeder
        if not feeder.done() and not self._created.done():
            raise CoordinationDown(
                f"watch of {self._prefix!r}: no etcd member acknowledged it within "
                f"{self._members.request_timeout_s:g} s: {self._members.names}"
            )

    async def end(self) -> None:
        """Stops feeding; the reader gets `CoordinationDown`."""
        self.take_out(self._down or "the watch is closed")
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.wait({self._feeder})

    def take_out(self, reason: str) -> None:
        """The reader gets `CoordinationDown` from now on."""
        self._down = reason
        self._changed.set()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> tuple[WatchEvent, ...]:
        while True:
            if self._down is not None:
                raise CoordinationDown(self._down)
            if self._waiting:
                events = self._waiting.popleft()
                self._waiting_bytes -= _size(events)
                self._room.set()
                return events
            assert self._feeder is not None
            if self._feeder.done():
                await self._feeder
            self._changed.clear()
            await self._changed.wait()

    async def _feed(self) -> None:
        """Follows one stream after the other, until the history is gone."""
        unreached = 0
        while True:
            member = self._members.current
            try:
                await self._follow(member)
            except (_StreamLost, CoordinationDown) as error:
                reason = str(error)
                unreached = unreached + 1 if isinstance(error, _Unreached) else 0
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name} {error.details()}"
                unreached = 0

            if unreached >= len(self._members) and not self._created.done():
                raise CoordinationDown(
                    f"watch of {self._prefix!r}: cannot reach any etcd member: "
                    f"{self._members.names}"
                )
            _log.info(
                "watch lost its etcd member",
                prefix=self._prefix,
                member=member.endpoint,
                revision=self._gathering.position,
                reason=reason,
            )

            self._members.move_on(member, reason)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    async def _follow(self, member: Member) -> None:
        if not await member.connected(self._members.attempt_timeout_s):
            raise _Unreached("cannot be reached")
        call = member.watch()
        try:
            self._gathering.begin()
            request = self._messages.watch(self._prefix, after=self._gathering.position)
            async with asyncio.timeout(self._members.attempt_timeout_s):
                await call.write(request)
                created = await call.read()
            await self._accept(created)
            while True:
                await self._take(await self._read(call, member))
        except TimeoutError as error:
            raise _StreamLost("no answer in time") from error
        finally:
            call.cancel()

    async def _accept(self, created: Any) -> None:
        """Checks the acknowledgement: it must come from the history that we know."""
        if created is grpc.aio.EOF:
            raise _StreamLost("ended by the member")
        if created.canceled:
            raise self._end_of(created)
        if self._cluster_id not in (None, created.header.cluster_id):
            raise WatchGap(
                f"watch of {self._prefix!r}: this is another etcd cluster than before; "
                "read the range again"
            )
        self._cluster_id = created.header.cluster_id
        if created.header.revision < self._gathering.position:
            await self._check_not_foreign()
        self._pause_s = PAUSE_S_MIN
        if not self._created.done():
            self._created.set_result(None)

    async def _check_not_foreign(self) -> None:
        """A member can lag behind a revision that we know; the cluster as a whole cannot."""
        request = self._messages.revision()
        answer: Any = await self._members.request(
            lambda member, timeout_s: member.range(request, timeout_s),
            what="read of the revision",
            repeatable=True,
        )
        if answer.header.revision < self._gathering.position:
            raise WatchGap(
                f"watch of {self._prefix!r} after revision {self._gathering.position}: etcd has "
                f"come to {answer.header.revision} only, so that is another history; "
                "read the range again, then watch from its revision"
            )

    async def _read(self, call: Any, member: Member) -> Any:
        """The next message; after each silence the member must show that it is there."""
        reading = start_task(
            _read(call), name="coordination/etcd-read", expected=(grpc.aio.AioRpcError,)
        )
        try:
            while not (await asyncio.wait({reading}, timeout=self._silence_s))[0]:
                await member.range(self._messages.revision(), self._members.attempt_timeout_s)
            return reading.result()
        finally:
            # An error that nobody waits for any more is the end of the stream, already noticed.
            if not reading.cancel() and not reading.cancelled():
                reading.exception()

    async def _take(self, message: Any) -> None:
        if message is grpc.aio.EOF:
            raise _StreamLost("ended by the member")
        if message.canceled:
            raise self._end_of(message)
        if message.events:
            events = map(self._messages.event, message.events)
            for revision in self._gathering.add(events, more=message.fragment):
                self._waiting.append(revision)
                self._waiting_bytes += _size(revision)
            self._changed.set()
        elif message.watch_id >= 0 and not message.fragment:
            self._gathering.progress(Revision(message.header.revision))
        while self._waiting_bytes > BUFFER_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    def _end_of(self, cancelled: Any) -> WatchGap | _StreamLost:
        """What it means that etcd ended the watch."""
        if not cancelled.compact_revision:
            return _StreamLost(cancelled.cancel_reason or "cancelled by the member")
        return WatchGap(
            f"watch of {self._prefix!r} after revision {self._gathering.position}: the "
            f"history before {cancelled.compact_revision} is compacted; "
            "read the range again, then watch from its revision"
        )


async def _read(call: Any) -> Any:
    return await call.read()


def _size(events: tuple[WatchEvent, ...]) -> int:
    return sum(len(event.key) + len(event.value or b"") + _EVENT_BYTES for event in events)
