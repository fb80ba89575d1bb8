"""A timeline, as a producer or an operator uses it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, Unpack

from dovetail import tracing
from dovetail.clock import Clock
from dovetail.errors import (
    DovetailError,
    Exists,
    InvalidInput,
    NotFound,
    Throttled,
    TopicUnknown,
    Unavailable,
    Uncertain,
)
from dovetail.logging import get_logger
from dovetail.timeline import frames
from dovetail.timeline.client.draft import (
    Body,
    Draft,
    DraftTerms,
    body_bytes,
    due_ms_of,
    message_of_draft,
)
from dovetail.timeline.client.link import Link
from dovetail.timeline.client.message import Scheduled
from dovetail.timeline.client.moments import Duration, Moment, duration_ms
from dovetail.timeline.client.node_clock import NodeClock
from dovetail.timeline.client.spans import scheduling
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.engine.where import SHOWN_MAX, SelectAction, Where
from dovetail.timeline.message import (
    BatchId,
    Inserted,
    MessageId,
    NewMessage,
    Shown,
    Status,
    encode_headers,
)

_log = get_logger("producer")

Result = TypeVar("Result")

#: Messages of one request; a larger list is sent in parts, each stored whole or not at all.
BATCH: Final = 1_000
#: How long a batch is sent again whose answer was lost or that was refused for a moment: longer
#: than a broker's death is noticed and another one is found.
PATIENCE_S: Final = 30.0
#: Time between two reports of a producer, which go with what it stores.
REPORT_MS: Final = 5_000
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0

#: Why a timeline does not take a message.
REFUSALS: Final = {
    Status.TOO_LARGE: "is larger than the timeline takes (`body_bytes_max`)",
    Status.TOO_FAR: "is due later than the timeline takes (`ahead_ms_max`)",
}


class Timeline:
    """One timeline of a node; made by `Dovetail.timeline`."""

    def __init__(self, name: str, link: Link, *, client_id: str, clock: Clock) -> None:
        self.name = name
        self._link = link
        self._client_id = client_id
        self._clock = clock
        self._node = NodeClock(clock)
        self._report_next_ms = 0.0
        #: The last that the broker said about the timeline; None before something was stored.
        self.signals: frames.Signals | None = None
        self._session: int | None = None
        self._opening = asyncio.Lock()
        #: One comparison of clocks at a time: each is measured from its question to its answer.
        self._comparing = asyncio.Lock()
        #: The name of every batch: sent again after a lost answer, it is stored once.
        self._producer = random.SystemRandom().randrange(2**62)
        self._sequence = 0
        #: Batches that are under way, in their order: the node keeps the names from the first on.
        self._under_way: dict[int, None] = {}

    # Scheduling

    async def schedule(
        self,
        body: Body,
        *,
        at: Moment | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        **more: Unpack[DraftTerms],
    ) -> Scheduled:
        """Stores a message that is due `at` a time, after a `delay`, or now.

        A text travels as UTF-8, a dict or a list as JSON. Durable when this returns. With a `key`
        that a message has which is still there, that one is returned and nothing is stored, unless
        `on_taken` says otherwise. `Draft` says what else can be given. Raises `InvalidInput` if the
        timeline refuses it, and `Exists` for `fail`.
        """
        draft = Draft(body, at, delay, key, headers or {}, priority, **more)
        (scheduled,) = await self.schedule_many([draft])
        return scheduled

    async def schedule_many(self, drafts: Sequence[Draft]) -> list[Scheduled]:
        """Stores many, a thousand to a request. Raises `InvalidInput` or `Exists` for the first
        refused one, after the others of its request were stored."""
        with scheduling(self.name, [draft.headers for draft in drafts]):
            return await self._schedule(drafts)

    async def _schedule(self, drafts: Sequence[Draft]) -> list[Scheduled]:
        now_ms = 0
        if any(draft.delay is not None for draft in drafts):
            now_ms = await self._now_ms()
        context = tracing.traceparent()
        messages = [message_of_draft(draft, now_ms, context) for draft in drafts]
        found: list[Scheduled] = []
        for start in range(0, len(messages), BATCH):
            outcomes = await self.insert(messages[start : start + BATCH])
            for at, outcome in enumerate(outcomes, start):
                reason = REFUSALS.get(outcome.status)
                if reason is not None:
                    raise InvalidInput(f"message {at} {reason}")
                if outcome.status is Status.EXISTS and drafts[at].on_taken == "fail":
                    raise Exists(f"message {outcome.id} has the key {drafts[at].key!r}")
                found.append(Scheduled(outcome.id, outcome.status is Status.OK))
        return found

    async def insert(
        self, messages: Sequence[NewMessage], *, batch: BatchId | None = None
    ) -> list[Inserted]:
        """Stores messages as they travel; for each its own outcome. `batch` names them for life.

        Sent again, under the same name, when the answer was lost: it is stored once. Raises, after
        half a minute without success, `Uncertain` if it may be stored, or what it was refused with.
        """
        self._sequence += 1
        sequence = self._sequence
        self._under_way[sequence] = None

        async def store(session: int) -> list[Inserted]:
            named = batch or BatchId(self._producer, sequence, next(iter(self._under_way)) - 1)
            request = frames.Insert(session, list(messages), named)
            outcomes = (await self._link.ask(request, frames.InsertedAll)).outcomes
            await self._report(session)
            return outcomes

        try:
            return await self._patiently(store, f"{len(messages)} messages")
        finally:
            del self._under_way[sequence]

    async def _patiently(self, work: Callable[[int], Awaitable[Result]], what: str) -> Result:
        """Does it in a session, again and again while the broker cannot."""
        until_s = asyncio.get_running_loop().time() + PATIENCE_S
        unknown = False
        attempt = 0

        while True:
            try:
                return await work(await self._open())

            except TopicUnknown:
                raise
            except DovetailError as error:
                if isinstance(error, NotFound):
                    # The broker forgot this session: it was restarted, or we were silent for long.
                    self._session = None
                elif not error.retriable:
                    raise

                unknown |= isinstance(error, Uncertain)
                if asyncio.get_running_loop().time() > until_s:
                    if unknown:
                        # Not sent the last time is not the same as not stored.
                        raise Uncertain(f"{what}: {error}") from error
                    raise

                if self._session is not None and not unknown:
                    # It may be this broker alone that cannot, and it knows of a better one.
                    self._report_next_ms = 0
                    await self._report(self._session)
                if attempt and isinstance(error, Unavailable):
                    self._link.turn_away()
                await asyncio.sleep(_pause_s(attempt, error))
                attempt += 1

    async def _open(self) -> int:
        async with self._opening:
            if self._session is None:
                request = frames.Open(self.name, self._client_id)
                opened = await self._link.ask(request, frames.Opened, changes=False)
                self._session = opened.session
            return self._session

    async def _report(self, session: int) -> None:
        """Compares clocks with the broker, every so often, and learns how the timeline is."""
        if self._clock.monotonic_ms() < self._report_next_ms:
            return
        try:
            await self._compare(session)
        except DovetailError as error:
            _log.debug("not reported", timeline=self.name, error=str(error))

    async def _compare(self, session: int) -> None:
        self._report_next_ms = self._clock.monotonic_ms() + REPORT_MS
        async with self._comparing:
            request = self._node.report(session)
            answer = await self._link.ask(request, frames.Reported, changes=False)
            self._node.on_answer(answer.now_ms, trusted=answer.trusted)
            self.signals = answer.signals
        if answer.signals.better:
            _log.info("moved", timeline=self.name, to=answer.signals.better)
            self._link.go_to(answer.signals.better)
            self._session = None

    async def _now_ms(self) -> int:
        """The present by the node's clock: ours may be wrong, and a delay is counted there."""
        if not self._node.compared:
            await self._patiently(self._compare, "comparing clocks")
        return self._node.now_ms()

    # Changing

    async def cancel(self, *ids: int) -> list[Status]:
        """Removes messages that nobody holds."""
        request = frames.Cancel(self.name, [MessageId(i) for i in ids])
        return (await self._link.ask(request, frames.Statuses)).statuses

    async def cancel_key(self, key: str) -> bool:
        """Removes the message that has this key; False if there is none, or it is being handled."""
        found = await self.look_up_key(key)
        if found is None:
            return False
        return await self.cancel(found.id) == [Status.OK]

    async def move(
        self, message: int, *, at: Moment | None = None, delay: Duration | None = None
    ) -> Status:
        """Gives a message that nobody holds another due time."""
        now_ms = 0 if delay is None else await self._now_ms()
        due_ms = due_ms_of(at, delay, now_ms)
        request = frames.Move(self.name, [(message, due_ms)])
        return (await self._link.ask(request, frames.Statuses)).statuses[0]

    # Looking

    async def look_up(self, *ids: int) -> list[Shown | None]:
        """Messages by id; None for what is not there."""
        request = frames.LookUp(self.name, [MessageId(i) for i in ids], [])
        return (await self._link.ask(request, frames.Found, changes=False)).messages

    async def look_up_key(self, key: str) -> Shown | None:
        """The message that has this unique key."""
        request = frames.LookUp(self.name, [], [key])
        return (await self._link.ask(request, frames.Found, changes=False)).messages[0]

    async def peek(self, limit: int = 10) -> list[Shown]:
        """The next messages, without taking them: fewer if they have more than 16 MiB."""
        request = frames.Peek(self.name, limit)
        return _shown(await self._link.ask(request, frames.Found, changes=False))

    async def describe(self) -> frames.Described:
        """Settings, counts by state, load, consumers and lateness."""
        return await self._link.ask(frames.Describe(self.name), frames.Described, changes=False)

    # Dead letters

    async def dead(self, *, after: int = 0, limit: int = 100) -> list[Shown]:
        """Dead letters in order of their ids, from behind `after` on.

        Fewer than `limit` if they have more than 16 MiB; none only if there is none.
        """
        request = frames.Dead(self.name, after, limit)
        return _shown(await self._link.ask(request, frames.Found, changes=False))

    async def all_dead(self) -> AsyncIterator[Shown]:
        """Every dead letter."""
        after = 0
        while found := await self.dead(after=after, limit=BATCH):
            for shown in found:
                yield shown
            after = found[-1].id

    async def replay(self, *ids: int) -> list[Status]:
        """Makes messages of dead letters, due now, with their first attempt before them."""
        request = frames.Replay(self.name, [MessageId(i) for i in ids])
        return (await self._link.ask(request, frames.Statuses)).statuses

    async def drop_dead(self, *ids: int) -> list[Status]:
        """Removes dead letters for good."""
        request = frames.DropDead(self.name, [MessageId(i) for i in ids])
        return (await self._link.ask(request, frames.Statuses)).statuses

    # By filter

    async def select(
        self,
        action: SelectAction,
        where: Where,
        *,
        dead: bool = False,
        due_ms: int = 0,
        after: int = 0,
    ) -> AsyncIterator[frames.Selected]:
        """Does it page by page, a request each; `after` of a page goes on behind it, in another
        program if need be. `preview` counts only, of messages or of `dead` letters."""
        more = True
        while more:
            request = frames.Select(self.name, action, where, after, dead, due_ms)
            page = await self._link.ask(request, frames.Selected, changes=action != "preview")
            yield page
            after, more = page.after, page.more

    async def _select(self, action: SelectAction, where: Where, **more: Any) -> frames.Selected:
        matched = done = after = 0
        ids: list[MessageId] = []
        async for page in self.select(action, where, **more):
            matched, done, after = matched + page.matched, done + page.done, page.after
            ids += page.ids[: SHOWN_MAX - len(ids)]
        return frames.Selected(matched, done, after, False, ids)

    async def preview(self, where: Where, *, dead: bool = False) -> frames.Selected:
        """How many messages, or dead letters, fit a filter; ids of the first hundred."""
        return await self._select("preview", where, dead=dead)

    async def cancel_where(self, where: Where) -> frames.Selected:
        """Removes messages that fit and that nobody holds; how many fit, and how many went."""
        return await self._select("cancel", where)

    async def move_where(
        self, where: Where, *, at: Moment | None = None, delay: Duration | None = None
    ) -> frames.Selected:
        """Gives messages that fit and that nobody holds another due time."""
        now_ms = 0 if delay is None else await self._now_ms()
        return await self._select("move", where, due_ms=due_ms_of(at, delay, now_ms))

    async def replay_where(self, where: Where) -> frames.Selected:
        """Makes messages of dead letters that fit; of all of them by an empty filter."""
        return await self._select("replay", where)

    async def drop_where(self, where: Where) -> frames.Selected:
        """Removes dead letters that fit, for good."""
        return await self._select("drop", where)

    # Recurring schedules

    async def put_schedule(
        self,
        name: str,
        body: Body,
        *,
        cron: str = "",
        zone: str = "UTC",
        every: Duration | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
    ) -> None:
        """Makes a message at every time of a cron line, or every so often; once in a cluster."""
        request = frames.PutSchedule(
            self.name,
            name,
            body_bytes(body),
            encode_headers(tuple((headers or {}).items())),
            cron,
            zone,
            0 if every is None else duration_ms(every),
            priority,
        )
        await self._link.ask(request, frames.Done)

    async def drop_schedule(self, name: str) -> None:
        """Ends a schedule. Raises `NotFound`."""
        await self._link.ask(frames.DropSchedule(self.name, name), frames.Done)

    async def schedules(self) -> list[frames.ScheduleState]:
        """All recurring schedules."""
        request = frames.Schedules(self.name)
        return (await self._link.ask(request, frames.ScheduleList, changes=False)).schedules

    # The timeline itself

    async def create(self, config: TimelineConfig | None = None) -> None:
        """Makes it; ready when this returns. Raises `TopicExists`."""
        await self._link.ask(frames.Create(self.name, config or TimelineConfig()), frames.Done)

    async def alter(self, /, **settings: frames.SettingValue) -> None:
        """Changes settings of it, such as `attempts_max=5`; the others stay as they are.

        Raises `InvalidInput` for a value that cannot be, and for `buckets`.
        """
        await self._link.ask(frames.Alter(self.name, settings), frames.Done)

    async def pause(self) -> None:
        """Nothing is pushed until `resume`; messages are stored, what is being handled goes on."""
        await self.alter(paused=True)

    async def resume(self) -> None:
        """Pushes again what is due."""
        await self.alter(paused=False)

    async def purge(self) -> int:
        """Removes all messages that nobody holds, for good, and no dead letters; how many."""
        removed = 0
        while True:
            request = frames.Purge(self.name, BATCH)
            count = (await self._link.ask(request, frames.Purged)).count
            removed += count
            if count < BATCH:
                return removed

    async def delete(self) -> None:
        """Deletes it with everything in it. Raises `TopicUnknown`."""
        await self._link.ask(frames.Drop(self.name), frames.Done)
        self._session = None


def _shown(found: frames.Found) -> list[Shown]:
    return [message for message in found.messages if message is not None]


def _pause_s(attempt: int, error: DovetailError) -> float:
    floor_s = 1.0 if isinstance(error, Throttled) else _PAUSE_S_MIN
    longest_s: float = min(_PAUSE_S_MAX, max(floor_s, _PAUSE_S_MIN * 2 ** min(attempt, 10)))
    return longest_s * random.SystemRandom().uniform(0.5, 1.0)
