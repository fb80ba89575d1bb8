"""Moves dead letters of a timeline to a topic or to another timeline (`dead_to`).

    read some of the source → write them to the target → remove them from the source

Promise: a letter stays in the source until the target has stored it durably, so it is never lost,
whichever process dies between two steps. At worst it is written again, under the same id
(`dead_letter.ID`): a timeline still stores it once, as a named batch; a reader of a topic can tell
by the header.

One broker does this for each timeline; all brokers choose the same one of those that are alive. If
two do it for a moment, because their views differ, letters are repeated but none is lost. A letter
that somebody replays or drops at the same moment may end in both places.

If the target is missing or refuses the letters, they stay dead letters of the source, none is
trimmed (`dead_max`), and the broker retries every `AGAIN_MS`. A ring of timelines is refused when
it is set. Two brokers that each set half of one at the same moment can still create it, so the
forwarder checks again before it forwards.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dovetail import dead_letter
from dovetail.clock import Clock
from dovetail.errors import DovetailError, InvalidInput, Unavailable
from dovetail.logging import get_logger
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.message import (
    BatchId,
    Headers,
    MessageId,
    NewMessage,
    Shown,
    Status,
    decode_headers,
    encode_headers,
)
from dovetail.timeline.metrics import TimelineMetrics
from dovetail.timeline.requests import Requests
from dovetail.timeline.running import RunningTimeline

_log = get_logger("timeline")

#: Letters that are read, written and removed at once.
LETTERS_MAX: Final = 100
#: And bytes of them: a body has up to 64 MiB, and what is read is held in memory.
LETTERS_BYTES: Final = 4 * 1024 * 1024
#: After so many reads of which the target took nothing, the next attempt goes on behind them: all
#: of them may be of one partition that is away.
FAILURES_MAX: Final = 10
#: Pause after a target did not take letters.
AGAIN_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter on its way."""

    #: The same whenever it is written.
    id: str
    shown: Shown
    headers: Headers


class Topics(Protocol):
    """The topics of the cluster, as dead letters reach them."""

    def check(self, topic: str) -> None:
        """Raises `TopicUnknown` if it is not there and would not be made."""
        ...

    async def put(self, topic: str, letters: Sequence[Letter]) -> list[DovetailError | None]:
        """Stores letters; what kept each of them from being stored, or None.

        Raises `DovetailError` if none can be.
        """
        ...


class Forwarder:
    """See the module. One for each broker."""

    def __init__(
        self,
        requests: Requests,
        running: Mapping[str, RunningTimeline],
        *,
        topics: Topics | None,
        is_mine: Callable[[str], bool],
        clock: Clock,
        metrics: TimelineMetrics,
    ) -> None:
        """`is_mine` says whether this broker does it for a timeline."""
        self._requests = requests
        self._timelines = running
        self._topics = topics
        self._is_mine = is_mine
        self._clock, self._metrics = clock, metrics
        self._wanted = asyncio.Event()
        #: Since when a target takes nothing, by source: the next attempt.
        self._again_ms: dict[str, float] = {}
        #: Behind which letter the next attempt begins, if not with the first.
        self._after: dict[str, int] = {}

    def check(self, name: str, dead_to: str, records: Mapping[str, TimelineRecord]) -> None:
        """Whether dead letters of a timeline can go there. Raises `InvalidInput`, `TopicUnknown`.

        A ring of timelines would try its letters for ever.
        """
        if dead_to and not is_timeline(dead_to):
            if self._topics is None:
                raise InvalidInput("dead letters cannot go to a topic: there are none here")
            self._topics.check(dead_to)

        passed = [name]
        while is_timeline(dead_to):
            target = timeline_of(dead_to)
            if target in passed:
                raise InvalidInput(f"dead letters would go round: {' → '.join([*passed, target])}")
            record = records.get(target)
            if record is None or record.state != "ready" or record.config.topic:
                raise InvalidInput(f"dead letters cannot go to {dead_to!r}: no such timeline")
            passed.append(target)
            dead_to = record.config.dead_to

    def wake(self) -> None:
        """Looks whether there is something to do."""
        if self._waiting():
            self._wanted.set()

    def _waiting(self) -> list[RunningTimeline]:
        now_ms = self._clock.monotonic_ms()
        return [
            running
            for name, running in self._timelines.items()
            if running.upkeep.unforwarded
            and running.record.config.dead_to
            and now_ms >= self._again_ms.get(name, 0)
            and self._is_mine(name)
        ]

    async def run(self) -> None:
        """Forwards whenever there is something to do; until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for running in self._waiting():
                await self._forward_patiently(running)

    async def _forward_patiently(self, running: RunningTimeline) -> None:
        name = running.record.name
        running.upkeep.unforwarded = False
        try:
            left = await self.forward(running)
        except DovetailError as error:
            left = f"{error}"
        except BaseException:  # Whoever begins anew must find them.
            running.upkeep.unforwarded = True
            self._again_ms[name] = self._clock.monotonic_ms() + AGAIN_MS
            raise
        self._again_ms.pop(name, None)
        if left:
            running.upkeep.unforwarded = True
            self._again_ms[name] = self._clock.monotonic_ms() + AGAIN_MS
            target = running.record.config.dead_to
            _log.warning("dead letters stay", timeline=name, to=target, error=left)

    async def forward(self, running: RunningTimeline) -> str:
        """Forwards all dead letters of a timeline; why some were refused, if they were.

        Raises `DovetailError` if none of them can be.
        """
        target, limit, failed = running.record.config.dead_to, 1, 0
        records = {name: each.record for name, each in self._timelines.items()}
        self.check(running.record.name, target, records)

        after = self._after.pop(running.record.name, 0)
        refused = "those before the last attempt's end are tried again" if after else ""
        while target:
            found = await running.use(
                "dead",
                lambda s, after=after, limit=limit: s.dead(after=MessageId(after), limit=limit),  # type: ignore[misc]
            )
            if not found:
                break

            limit = _next_limit(limit, found)
            after = found[-1].id
            letters = [letter_of(running.record, shown) for shown in found]
            outcomes = await self._put(target, letters)
            stored = [
                letter.shown.id
                for letter, outcome in zip(letters, outcomes, strict=True)
                if outcome is Status.OK
            ]
            await running.use("drop", lambda s, ids=stored: s.drop_dead(ids))  # type: ignore[misc]
            self._metrics.messages(running.record.name, "forwarded", good=len(stored))

            errors = [outcome for outcome in outcomes if isinstance(outcome, DovetailError)]
            failed = failed + 1 if errors and not stored else 0
            if failed == FAILURES_MAX:
                self._after[running.record.name] = after
                raise errors[0]
            if len(stored) < len(letters):
                why = f": {errors[0]}" if errors else ""
                refused = f"{target!r} refused {len(letters) - len(stored)} of them{why}"
        return refused

    async def _put(self, target: str, letters: Sequence[Letter]) -> list[Status | DovetailError]:
        """What became of each letter. Raises `DovetailError` if the target takes none."""
        if not is_timeline(target):
            if self._topics is None:
                raise Unavailable("there are no topics here")
            # One partition of several may be away. What is stored goes, or it would be stored again
            # with every attempt.
            return [error or Status.OK for error in await self._topics.put(target, letters)]

        into = self._requests.running(timeline_of(target))
        into.check_open()
        return await asyncio.gather(*(self._put_one(into, letter) for letter in letters))

    async def _put_one(self, into: RunningTimeline, letter: Letter) -> Status | DovetailError:
        """Under a name of its own: which ones are read together may differ the next time."""
        message = _message(letter)
        # What is stored under a name, a refusal too, is told to it for ever.
        if len(message.body) + len(message.headers) > into.record.config.body_bytes_max:
            return Status.TOO_LARGE
        try:
            (inserted,) = await self._requests.store(into, [message], _batch(letter))
        except DovetailError as error:
            return error
        return inserted.status


def _next_limit(limit: int, found: Sequence[Shown]) -> int:
    """How many letters are read next, if they are as large: twice as many at most."""
    size = sum(len(shown.body) + len(shown.headers) for shown in found)
    fitting = LETTERS_BYTES * len(found) // max(1, size)
    return max(1, min(LETTERS_MAX, limit * 2, fitting))


def is_timeline(dead_to: str) -> bool:
    """Whether dead letters go to a timeline, and not to a topic."""
    return dead_to.startswith("timeline:")


def timeline_of(dead_to: str) -> str:
    """The name of that timeline."""
    return dead_to.removeprefix("timeline:")


def letter_of(record: TimelineRecord, shown: Shown) -> Letter:
    """A dead letter with headers that say where it comes from, and why it died."""
    identity = f"{record.id}-{shown.id}-{shown.version}"
    said = {
        dead_letter.KIND: "failed",
        dead_letter.REASON: shown.reason,
        dead_letter.ATTEMPTS: str(shown.attempts),
        dead_letter.SOURCE: f"timeline:{record.name}",
        dead_letter.PLACE: str(shown.id),
        dead_letter.ID: identity,
    }
    if shown.key is not None:
        said[dead_letter.SOURCE_KEY] = shown.key
    try:
        own = decode_headers(shown.headers)
    except InvalidInput:
        own = (("dovetail-source-headers", shown.headers),)  # Another client wrote them.

    # What an earlier timeline said about it is its history no more than the last word.
    kept = tuple(each for each in own if each[0] not in dead_letter.OF_THE_FAILURE | said.keys())
    told = tuple((name, text.encode(errors="replace")) for name, text in said.items())
    return Letter(identity, shown, kept + told)


def _message(letter: Letter) -> NewMessage:
    """The message that it becomes: due now, without its key, which might be taken there."""
    shown = letter.shown
    headers = encode_headers(letter.headers)
    return NewMessage(0, shown.body, headers, None, shown.priority, shown.order_key)


def _batch(letter: Letter) -> BatchId:
    named = hashlib.blake2b(f"dead {letter.id}".encode(), digest_size=8).digest()
    return BatchId(int.from_bytes(named) >> 1, 0)
