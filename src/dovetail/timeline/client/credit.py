"""A consumer's credit: how many messages it can take, and how many are worth a request.

There is room for as many messages as handlers run at once and, while no other consumer is idle, for
some that wait ahead of their turn (`prefetch`). A request takes credit; messages that did not come
or are finished return it. Credit may be negative, after the room shrank suddenly.
"""

import asyncio
from typing import Final

from dovetail.background import Alarm, later
from dovetail.timeline.client.options import ConsumerOptions

#: Requests for messages that are outstanding at once: while one is answered, the next is there.
OUTSTANDING: Final = 3
#: Messages of one request at most.
TAKE_MAX: Final = 1_000
#: How long a little credit waits for more before it is worth a request: while handlers are quick
#: there is enough by then, and while they are slow nobody waits for this.
_GATHER_S: Final = 0.02


class Credit:
    """See the module."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        #: Messages that may be here.
        self.capacity = options.handled_at_once + options.ahead
        self._left = self.capacity
        #: Below this, messages are not worth a request, if another one is outstanding.
        self.enough = max(1, min(TAKE_MAX, self.capacity // 4))
        self._changed = asyncio.Event()
        self._gathering: Alarm | None = None
        self._gathered = False

    def give(self, count: int) -> None:
        """So many more may come; less than none if they came unasked."""
        self._left += count
        self._changed.set()
        if 0 < self._left < self.enough and self._gathering is None:
            self._gathering = later(_GATHER_S, self._on_gathered, name="client/gather")

    def _on_gathered(self) -> None:
        self._gathering, self._gathered = None, True
        self._changed.set()

    def take(self, *, outstanding: int) -> int:
        """How many to ask for now, beside so many requests; 0 if that is not worth one."""
        few = self._gathered and not outstanding
        if self._left < (1 if few else self.enough):
            return 0
        self._gathered = False
        wanted = max(min(self._left, self.enough), self._left // OUTSTANDING)
        taken = min(TAKE_MAX, wanted)
        self._left -= taken
        return taken

    async def changed(self) -> None:
        """Returns when there may be more."""
        self._changed.clear()
        await self._changed.wait()

    def fetch_ahead(self, allowed: bool) -> None:
        """Whether messages may wait here for a handler."""
        before = self.capacity
        self.capacity = self._options.handled_at_once + self._options.ahead * allowed
        if self.capacity != before:
            self.give(self.capacity - before)
