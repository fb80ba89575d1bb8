"""Holds a lease: keeps it alive in the background, and notices its loss in time.

Promise: while `valid(now_ms)` is true, the service has not ended the lease. The holder counts from
the moment at which it SENT the keep-alive that was answered; the service restarts the lease's time
when that arrives, which is later. So the holder gives up first, whatever the network does, as long
as both clocks run at the same speed.

    granted --answered--> valid --answered--> valid ...
                            |
                            +--the service says that it ended--> lost
                            +--no answer within the ttl--------> lost (for good)

A lost lease stays lost, even if the service still has it: its holder has stopped.

Not here: safety. A holder can be paused right after it checked; the store that it writes to checks
its term.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Self

from dovetail.background import start_task
from dovetail.clock import Clock
from dovetail.coordination.protocol import Coordinator, LeaseId
from dovetail.errors import DovetailError, LeaseLost
from dovetail.logging import get_logger

_log = get_logger("coordination")

#: Keep-alives in one ttl: two can fail, and the third still comes in time. etcd's choice as well.
KEEP_ALIVES_PER_TTL = 3
#: Attempts in one ttl while the service does not answer, each after a pause.
RETRIES_PER_TTL = 20


@dataclass(slots=True)
class LeaseLife:
    """What the holder knows about its lease; pure, time comes in."""

    ttl_ms: int
    #: When the last keep-alive (or the grant) that was answered had been sent.
    sent_ms: float
    lost: bool = field(default=False, init=False)

    @property
    def valid_until_ms(self) -> float:
        return self.sent_ms + self.ttl_ms

    @property
    def keep_alive_due_ms(self) -> float:
        return self.sent_ms + self.ttl_ms / KEEP_ALIVES_PER_TTL

    def valid(self, now_ms: float) -> bool:
        return not self.lost and now_ms < self.valid_until_ms

    def on_answer(self, *, sent_ms: float, now_ms: float) -> None:
        """A keep-alive sent at `sent_ms` was answered; too late an answer changes nothing."""
        self.on_tick(now_ms=now_ms)
        if not self.lost:
            self.sent_ms = max(self.sent_ms, sent_ms)

    def on_tick(self, *, now_ms: float) -> None:
        """Time went on."""
        if now_ms >= self.valid_until_ms:
            self.lost = True

    def on_lost(self) -> None:
        """The service says that the lease has ended."""
        self.lost = True


class LeaseKeeper:
    """Holds one lease from `async with` to its end, and revokes it there.

    `lost` is set when the lease ends, or can no longer be known to be alive.
    """

    def __init__(self, coordinator: Coordinator, *, ttl_ms: int, clock: Clock) -> None:
        self._coordinator = coordinator
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._id: LeaseId | None = None
        self._life: LeaseLife | None = None
        self._task: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Grants the lease. Raises what `grant` raises, `LeaseLost` if that took the whole ttl."""
        if self._life is not None:
            raise RuntimeError("a LeaseKeeper can be entered only once; make another")
        life = LeaseLife(ttl_ms=self._ttl_ms, sent_ms=self._clock.monotonic_ms())
        lease = await self._coordinator.grant(ttl_ms=self._ttl_ms)
        self._id, self._life = lease, life
        if not life.valid(self._clock.monotonic_ms()):
            await self._revoke(lease)
            raise LeaseLost(f"lease {lease} of {self._ttl_ms} ms took longer than that to grant")
        self._task = start_task(self._keep(lease, life), name="coordination/lease", of=str(lease))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._id is not None
        assert self._life is not None
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        self._life.on_lost()
        self.lost.set()
        await self._revoke(self._id)

    @property
    def id(self) -> LeaseId:
        """The lease to bind keys to."""
        if self._id is None:
            raise RuntimeError("no lease yet; enter the LeaseKeeper with `async with` first")
        return self._id

    @property
    def valid_until_ms(self) -> float:
        """The monotonic time from which on the lease counts as lost unless it is kept alive."""
        return 0.0 if self._life is None else self._life.valid_until_ms

    def valid(self, now_ms: float) -> bool:
        """Whether the lease surely has not ended at this monotonic time."""
        return self._life is not None and self._life.valid(now_ms)

    async def _keep(self, lease: LeaseId, life: LeaseLife) -> None:
        pause_ms = life.keep_alive_due_ms - self._clock.monotonic_ms()
        try:
            while not life.lost:
                await asyncio.sleep(max(0.0, pause_ms) / 1000)
                pause_ms = await self._keep_once(lease, life)
                life.on_tick(now_ms=self._clock.monotonic_ms())
        finally:
            # Whatever ends this task, nobody keeps the lease alive from here on.
            life.on_lost()
            self.lost.set()

    async def _keep_once(self, lease: LeaseId, life: LeaseLife) -> float:
        """Sends one keep-alive; the pause until the next one, in milliseconds."""
        sent_ms = self._clock.monotonic_ms()
        remaining_ms = max(0.0, life.valid_until_ms - sent_ms)
        try:
            async with asyncio.timeout(remaining_ms / 1000):
                await self._coordinator.keep_alive(lease)
        except LeaseLost as error:
            _log.warning("lease lost", error=str(error))
            life.on_lost()
        except (DovetailError, TimeoutError) as error:
            _log.warning("cannot renew a lease", lease=lease, error=str(error) or "no answer")
            remaining_ms = life.valid_until_ms - self._clock.monotonic_ms()
            return min(life.ttl_ms / RETRIES_PER_TTL, remaining_ms)
        else:
            now_ms = self._clock.monotonic_ms()
            life.on_answer(sent_ms=sent_ms, now_ms=now_ms)
            return life.keep_alive_due_ms - now_ms
        return 0.0

    async def _revoke(self, lease: LeaseId) -> None:
        """Ends the lease if the service answers; else it ends by itself, within its ttl."""
        try:
            async with asyncio.timeout(self._ttl_ms / 1000):
                await self._coordinator.revoke(lease)
        except (DovetailError, TimeoutError) as error:
            _log.warning("cannot revoke a lease", lease=lease, error=str(error) or "no answer")
