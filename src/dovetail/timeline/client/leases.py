"""The leases of a consumer: which it has, until when each is ours, and which were given up.

    pushed, taken up ──▶ here ──▶ ended     (done, failed or given back)
                           └────▶ lost      (it could not be extended in time, or is another's)

Promise: while a handler runs under a lease that is not lost, no other handler has begun with that
message, whichever connection is slow and whichever broker serves it, as long as their clocks are
within the drift that is allowed (`timeline.drift_ms_max`, a tenth of the shortest lease). So a
lease counts as lost a margin before the store ends it, a handler begins only with a good part of
its lease left, and a lease with less is extended first:

    0 ─────────── 1/3 ──────── 1/2 ──────── 3/4 ──────── 1
    leased        extended     begins       lost here    another's
                  from here on no more

Not here: a paused process cannot give up what it holds. When it wakes, the store refuses its
operations, and the next check here ends its handler.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from dovetail.errors import DovetailError
from dovetail.logging import get_logger
from dovetail.timeline.client.message import Message
from dovetail.timeline.message import BATCH_MAX, Extension, Handle, Release, Status

_log = get_logger("consumer")

#: Parts of a lease: between two extensions, the least that is left when a handler begins, and what
#: is left when it counts as lost. The last one is more than the clocks of two brokers may differ.
EXTENDED: Final = 1 / 3
BEGIN_LEFT: Final = 1 / 2
LOST_LEFT: Final = 1 / 4
#: An extension that failed is tried again after this part of a lease, and waited for no longer than
#: the other: there is time for a second try.
_AGAIN: Final = 1 / 24
_ANSWERED: Final = 1 / 4
#: Between two looks whether a lease is lost.
_LOOK: Final = 1 / 20


class Leases:
    """See the module."""

    def __init__(
        self,
        timeline: str,
        lease_ms: int,
        *,
        now_ms: Callable[[], int],
        extend: Callable[[list[Extension]], Awaitable[list[Status]]],
        on_lost: Callable[[Message], None],
    ) -> None:
        """`now_ms` is the broker's time, `extend` asks it; `on_lost` is called once for each."""
        self._timeline = timeline
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._ask = extend
        self._on_lost = on_lost
        self._here: dict[Handle, Message] = {}
        #: Until when a lease that was lost here may be ours at the store: an extension whose answer
        #: was lost may have come through. It is the same attempt, so it is not taken up again.
        self._lost: dict[Handle, int] = {}
        #: Leases of a process before this one, under the same id, that may have begun with them.
        self._former: set[Handle] = set()

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, handle: Handle) -> bool:
        return handle in self._here

    def add(self, messages: Iterable[Message]) -> None:
        now_ms, now_s = self._now_ms(), time.monotonic()
        for message in messages:
            self._here[message.handle] = message
            message.until_s = now_s + self._ours_s(message.until_ms - now_ms)

    def inherit(self, handles: Iterable[Handle]) -> None:
        """A process before this one had them; what it did with them nobody knows."""
        self._former.update(handles)

    def untried(self, message: Message) -> Release:
        """Gives back what no handler began with here. An attempt of the process before counts:
        else a message that kills its consumers would never be a dead letter."""
        former = message.handle in self._former
        reason = "the consumer ended without a word" if former else ""
        return Release(message.handle, max(0, message.start_ms), former, reason)

    def end(self, message: Message) -> bool:
        """It is finished with; whether it is still ours."""
        self._here.pop(message.handle, None)
        self._former.discard(message.handle)
        if message.lease_lost:
            self._lost[message.handle] = self._now_ms() + self._lease_ms
        return not message.lease_lost

    def due_by(self, time_ms: int) -> list[Message]:
        """Those that are here and could have begun by then."""
        return [message for message in self._here.values() if message.start_ms <= time_ms]

    def known(self) -> set[Handle]:
        """What is not to be taken up: it is here, or was."""
        now_ms = self._now_ms()
        self._lost = {handle: ms for handle, ms in self._lost.items() if ms > now_ms}
        return {*self._here, *self._lost}

    async def fit(self, messages: Sequence[Message]) -> list[Message]:
        """Those whose handler may begin now. What has too little left is extended first."""
        least_ms = self._now_ms() + BEGIN_LEFT * self._lease_ms
        short = [message for message in messages if message.until_ms < least_ms]
        extended = not short or await self._extend(short)
        fit = messages if extended else [message for message in messages if message not in short]
        return [message for message in fit if not message.lease_lost]

    async def keep(self) -> None:
        """Extends what is here, again and again."""
        pause = EXTENDED
        while True:
            await asyncio.sleep(pause * self._lease_ms / 1000)
            messages = list(self._here.values())
            parts = [messages[at : at + BATCH_MAX] for at in range(0, len(messages), BATCH_MAX)]
            extended = [await self._extend(part) for part in parts]
            pause = EXTENDED if all(extended) else _AGAIN

    async def watch(self) -> None:
        """Gives up what could not be extended in time."""
        while True:
            await asyncio.sleep(_LOOK * self._lease_ms / 1000)
            least_ms = self._now_ms() + LOST_LEFT * self._lease_ms
            for message in [each for each in self._here.values() if each.until_ms < least_ms]:
                self._lose(message)

    async def _extend(self, messages: Sequence[Message]) -> bool:
        """Extends them; whether the broker answered."""
        until_ms = self._now_ms() + self._lease_ms
        until_s = time.monotonic() + self._ours_s(self._lease_ms)
        extensions = [Extension(message.handle, until_ms) for message in messages]
        try:
            async with asyncio.timeout(_ANSWERED * self._lease_ms / 1000):
                statuses = await self._ask(extensions)
        except (DovetailError, TimeoutError) as error:
            _log.warning("leases not extended", timeline=self._timeline, error=str(error))
            return False

        for message, status in zip(messages, statuses, strict=True):
            if status is Status.OK:
                message.until_ms, message.until_s = until_ms, until_s
            else:
                self._lose(message)
        return True

    def _ours_s(self, left_ms: float) -> float:
        """How long a lease is surely ours of which so much is left."""
        return (left_ms - LOST_LEFT * self._lease_ms) / 1000

    def _lose(self, message: Message) -> None:
        """The lease is another's, or may be before we know."""
        if message.handle not in self._here or message.lease_lost:
            return
        message.lease_lost = True
        _log.warning("lease lost", timeline=self._timeline, id=message.id, attempt=message.attempt)
        self._on_lost(message)


def cancel_soon(task: "asyncio.Task[None]") -> None:
    """Cancels a handler's task after its first step: before that it would never run, and its
    message would neither be given back nor handled."""
    asyncio.get_running_loop().call_soon(task.cancel)
