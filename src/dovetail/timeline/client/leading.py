"""Leadership for any program: of several that want to lead under a name, one does, under a term.

    async with connect("127.0.0.1:9092") as d, d.lead("nightly") as lead:
        while lead.valid:
            ...

A name is a timeline with one message in it; the program that holds the message's lease leads. So
nothing has to run beside the brokers, and members need not reach each other.

    standing by ── the lease is ours ──▶ leading ── the block ends ──▶ given back, another leads
                                           └── lease not extended in time ──▶ lost

Promise: two never lead at a time, by the store's clock. A lease that could not be extended counts
as lost here when a quarter of it is left (`leases.py`). `term` grows with every leadership: a store
that receives it, and refuses a lower one, also refuses a leader that was paused and woke up.

Survives: the death of any member and any broker. While no broker answers, the leader loses its
lease, and nobody else gets it.

Not here: ending what the leader does (`dovetail lead` ends a command, see `cli/lead`).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from dovetail.background import first_of
from dovetail.errors import DovetailError, InvalidInput, TopicExists, TopicUnknown
from dovetail.foreign import shown
from dovetail.logging import get_logger
from dovetail.timeline.client.message import Message
from dovetail.timeline.client.moments import Duration, duration_ms
from dovetail.timeline.client.retry import NotHandled
from dovetail.timeline.config import NAME_CHARACTERS_MAX, TimelineConfig, check_name

if TYPE_CHECKING:
    from dovetail.timeline.client.client import Dovetail

#: The timeline of a name, and the key of its message.
PREFIX: Final = "lead-"
_KEY: Final = "lead"
#: Deaths of leaders in a row before the message is a dead letter, and is made anew: the most.
_ATTEMPTS_MAX: Final = 10_000
#: A member that comes is considered within this time.
_WINDOW_MS: Final = 250
#: How long a timeline may take to be made, and between two looks whether it is.
_CREATED_S: Final = 10.0
_LOOK_S: Final = 0.05
#: Terms of one message; those of the next message lie above them.
_TERMS: Final = 2**31

_log = get_logger("lead")


class Lead:
    """One leadership of this program."""

    def __init__(self, message: Message) -> None:
        self._message = message
        #: Higher than that of every leadership before it.
        self.term = message.id * _TERMS + message.handle.version
        #: Set when the leadership is lost; it does not come back.
        self.lost = asyncio.Event()
        self._over = False

    @property
    def valid(self) -> bool:
        """Whether it is surely ours; safe from any thread."""
        return not self._over and time.monotonic() < self.valid_until_s

    @property
    def valid_until_s(self) -> float:
        """Until when it is surely ours, by `time.monotonic`, unless it is extended."""
        return self._message.until_s

    def end(self) -> None:
        """It is lost or given back."""
        self._over = True
        self.lost.set()


@asynccontextmanager
async def leading(client: "Dovetail", name: str, *, lease: Duration) -> AsyncIterator[Lead]:
    """Waits until this program leads; gives the lead back at the end of the block.

    `client` serves this alone. Raises `InvalidInput`.
    """
    timeline = _timeline_of(name)
    found: list[Lead] = []
    arrived, given_back = asyncio.Event(), asyncio.Event()

    async def hold(message: Message) -> None:
        lead = Lead(message)
        found.append(lead)
        arrived.set()
        try:
            await given_back.wait()
        finally:
            lead.end()
        raise NotHandled

    lease_s = duration_ms(lease) / 1000
    await _prepare(client, timeline)
    client.consumer(timeline, lease=lease, concurrency=1, prefetch=0)(hold)
    try:
        while True:
            try:
                async with asyncio.timeout(lease_s):
                    # A consumer that cannot go on, as without the right to, says so.
                    await first_of(arrived.wait(), client.run())
            except TimeoutError:
                # The lease may arrive meanwhile, and `arrived` tells the next round.
                await _prepare_again(client, timeline)
                continue
            arrived.clear()
            # It may be lost by now.
            if found and found[-1].valid:
                yield found[-1]
                return
    finally:
        given_back.set()


async def _prepare(client: "Dovetail", name: str) -> None:
    """Makes the timeline and its message, unless they are there."""
    config = TimelineConfig(buckets=64, window_ms=_WINDOW_MS, attempts_max=_ATTEMPTS_MAX)
    timeline = client.timeline(name)
    until_s = time.monotonic() + _CREATED_S
    while True:
        try:
            await timeline.schedule(b"", key=_KEY)
            return
        except TopicUnknown:
            if time.monotonic() > until_s:
                raise
        try:
            await timeline.create(config)
        except TopicExists:
            # Another one makes it at this moment.
            await asyncio.sleep(_LOOK_S)


async def _prepare_again(client: "Dovetail", name: str) -> None:
    """Somebody may have purged it; that nobody answers is not the end of standing by."""
    try:
        await _prepare(client, name)
    except DovetailError as error:
        _log.warning("standing by, and nobody answers", name=name, reason=str(error))


def _timeline_of(name: str) -> str:
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS_MAX - len(PREFIX):
        raise InvalidInput(
            f"{shown(name)} cannot name a lead: use 1 to {NAME_CHARACTERS_MAX - len(PREFIX)} "
            "letters, digits and . _ -"
        )
    check_name(name)
    return PREFIX + name
