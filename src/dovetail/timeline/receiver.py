"""Receiving without a session: each call stands alone, for programs of any language over HTTP.

A call to receive needs a consumer, because buckets are assigned to consumers. So each call takes a
*seat*, which is a consumer's session here, and returns it with its answer; the next call under the
same name takes it again, with its buckets. A seat that no call takes for `SESSION_MS` ends.

Promises, the same as to a consumer with its own session:
- Extend, done, retry and dead name a message's id and version, and the store decides by them.
- An unused seat holds nothing: messages leased for it that did not leave go back at once,
  uncounted. So do messages leased for a caller that disconnected while it waited.
- Messages that were sent but did not arrive return when their lease ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dovetail.background import Tasks
from dovetail.errors import DovetailError, NotFound, Throttled, TopicUnknown
from dovetail.timeline import frames
from dovetail.timeline.context import Context
from dovetail.timeline.message import (
    TIME_MS_MAX,
    Extension,
    Handle,
    Leased,
    Release,
    Status,
)
from dovetail.timeline.requests import Requests
from dovetail.timeline.running import RunningTimeline
from dovetail.timeline.session import SESSION_MS

#: Shortest wait for messages: a lease must have come from the store before it ends.
WAIT_MS_MIN: Final = 100
#: Bytes of bodies and headers in one answer; what is beyond goes back. The first always fits.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
#: Seats of a node, with somebody on them or not. Each is a consumer to whom buckets are assigned.
SEATS_MAX: Final = 1_000


@dataclass(slots=True)
class _Seat:
    """A consumer that whoever has the same name takes in turn."""

    timeline: str
    name: str
    lease_ms: int
    number: int
    session: int = 0
    taken: bool = True
    left_ms: int = 0


class Receiver:
    """See the module. One for each broker."""

    def __init__(self, requests: Requests, context: Context, *, node: str) -> None:
        self._requests = requests
        self._context = context
        self._node = node
        self._seats: list[_Seat] = []
        #: Tells this process from another one under the same node name.
        self._instance = context.rng.randrange(1, 2**62)
        self._tasks = Tasks()

    # Receiving

    async def receive(
        self, timeline: str, *, consumer: str, limit: int, wait_ms: int, lease_ms: int
    ) -> list[Leased]:
        """Messages that are due, or become due within the wait; none if none does.

        Raises `InvalidInput` for a lease that the timeline does not give, `Throttled`, and
        `TopicUnknown`.
        """
        seat = self._take_seat(timeline, consumer, lease_ms)
        try:
            found = await self._consume(seat, limit, max(WAIT_MS_MIN, wait_ms))
            running = self._requests.running(timeline)
        except BaseException:
            # Its session is over, or nobody knows; the next caller opens another one.
            self._seats.remove(seat)
            raise

        fitting = _fitting(found)
        self._leave(seat, running, found[len(fitting) :])
        return fitting

    async def give_back(self, timeline: str, messages: Sequence[Leased]) -> None:
        """Messages that were leased and never reached a consumer: nothing was tried."""
        releases = [Release(each.handle, each.due_ms, counted=False) for each in messages]
        await self._requests.release_leases(self._requests.running(timeline), releases)

    async def _consume(self, seat: _Seat, limit: int, wait_ms: int) -> list[Leased]:
        for fresh in (False, True):
            if fresh or not seat.session:
                seat.session = await self._open(seat)
            try:
                answer = await self._requests.consume(frames.Consume(seat.session, limit, wait_ms))
            except TopicUnknown:
                raise
            except NotFound:
                # The broker forgot this session, which was silent for long.
                if fresh:
                    raise
                continue
            assert isinstance(answer, frames.Pushed)
            return answer.messages
        raise AssertionError("unreachable")

    async def _open(self, seat: _Seat) -> int:
        number = f"/{seat.number}" if seat.number else ""
        client = f"{seat.name}@{self._node}{number}"
        request = frames.Open(
            seat.timeline, client, lease_ms=seat.lease_ms, instance=self._instance
        )
        await self._requests.find(seat.timeline)
        opened = await self._requests.open(request)
        assert isinstance(opened, frames.Opened)
        return opened.session

    def _take_seat(self, timeline: str, name: str, lease_ms: int) -> _Seat:
        alike = [each for each in self._seats if (each.timeline, each.name) == (timeline, name)]
        for seat in alike:
            if not seat.taken and seat.lease_ms == lease_ms:
                seat.taken = True
                return seat
        if len(self._seats) >= SEATS_MAX:
            raise Throttled(
                f"{SEATS_MAX} consumers receive from this node by HTTP; ask another node, or with "
                "fewer names"
            )
        numbers = {each.number for each in alike}
        free = next(number for number in range(SEATS_MAX) if number not in numbers)
        seat = _Seat(timeline, name, lease_ms, free)
        self._seats.append(seat)
        return seat

    def _leave(self, seat: _Seat, running: RunningTimeline, unfitting: Sequence[Leased]) -> None:
        """Nobody sits there, once nothing is leased for it any more."""
        consumer = running.consumers.get(seat.session)
        if consumer is not None:
            consumer.leased = 0
        seat.left_ms = self._context.now_ms()
        # What the store is asked for others says nothing about this one.
        holds = consumer is not None and (
            consumer.outbox or running.loader.is_asked_for(consumer.member.id)
        )
        if not holds and not unfitting:
            seat.taken = False
            return
        self._tasks.start(
            self._empty(seat, running, unfitting),
            name="timeline/empty-seat",
            expected=(DovetailError,),
        )

    async def _empty(
        self, seat: _Seat, running: RunningTimeline, unfitting: Sequence[Leased]
    ) -> None:
        try:
            if unfitting:
                await self.give_back(seat.timeline, unfitting)
            await running.give_back_unsent(seat.session)
        finally:
            seat.taken = False

    def prune(self) -> None:
        """Forgets seats that nobody has taken for long: their sessions are over."""
        oldest_ms = self._context.now_ms() - SESSION_MS
        self._seats = [each for each in self._seats if each.taken or each.left_ms > oldest_ms]

    async def stop(self) -> None:
        """Waits for what is given back."""
        await self._tasks.finish()

    # What is received

    async def extend(
        self, timeline: str, handles: Sequence[Handle], *, lease_ms: int
    ) -> list[Status]:
        """Has leases end so long from now. Raises `InvalidInput` if that is too long."""
        until_ms = self._context.now_ms() + lease_ms
        extensions = [Extension(handle, until_ms) for handle in handles]
        return await self._requests.extend_leases(self._requests.running(timeline), extensions)

    async def done(self, timeline: str, handles: Sequence[Handle]) -> list[Status]:
        """Removes messages that were handled."""
        return await self._requests.delete_leases(self._requests.running(timeline), handles)

    async def retry(
        self, timeline: str, given: Sequence[tuple[Handle, int | None, str]]
    ) -> list[Status]:
        """Gives messages back, to come again after so many milliseconds, or, with None, as the
        timeline says; each with its reason. `DEAD` for one that had its last attempt."""
        running = self._requests.running(timeline)
        attempts = await self._attempts(
            running, [handle for handle, delay_ms, _ in given if delay_ms is None]
        )
        now_ms = self._context.now_ms()
        releases = []
        for handle, delay_ms, reason in given:
            if delay_ms is None:
                delay_ms = running.record.config.rest_ms(
                    attempts.get(handle.id, 1), self._context.rng
                )
            due_ms = min(TIME_MS_MAX, now_ms + delay_ms)
            releases.append(Release(handle, due_ms, reason=reason))
        return await self._requests.release_leases(running, releases)

    async def _attempts(
        self, running: RunningTimeline, handles: Sequence[Handle]
    ) -> dict[int, int]:
        if not handles:
            return {}
        ids, now_ms = [handle.id for handle in handles], self._context.now_ms()
        found = await running.use("look", lambda store: store.look_up(ids, now_ms=now_ms))
        return {shown.id: shown.attempts for shown in found if shown is not None}

    async def dead(self, timeline: str, given: Sequence[tuple[Handle, str]]) -> list[Status]:
        """Makes dead letters of messages, whatever attempts they have left."""
        running, now_ms = self._requests.running(timeline), self._context.now_ms()
        releases = [
            Release(handle, now_ms, reason=reason, rejected=True) for handle, reason in given
        ]
        return await self._requests.release_leases(running, releases)


def _fitting(found: Sequence[Leased]) -> list[Leased]:
    """The first messages, as many as fit into an answer."""
    size = 0
    for at, message in enumerate(found):
        size += len(message.body) + len(message.headers)
        if at and size > ANSWER_BYTES_MAX:
            return list(found[:at])
    return list(found)
