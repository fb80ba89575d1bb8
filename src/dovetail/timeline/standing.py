"""A broker's standing in its cluster: the lease that everything of it in coordination hangs on.

Promise: while the process lives and coordination answers, there is a lease. One that was lost (the
process stood still, or was cut off for longer than the lease) is replaced by a new one, and whoever
has written keys under the old one is told to write them again. `held` is false from the moment at
which the old one cannot be known to be alive until the new one is there.

Not here: safety. What a broker does without a standing is refused by the store, if at all.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from dovetail.clock import Clock
from dovetail.coordination import Coordinator, LeaseId, LeaseKeeper
from dovetail.logging import get_logger

_log = get_logger("timeline")

#: Pause before a lease is asked for again.
_RETRY_MS: Final = 200


class Standing:
    """See the module. Use as an async context manager."""

    def __init__(self, coordinator: Coordinator, *, ttl_ms: int, clock: Clock) -> None:
        self._coordinator = coordinator
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._keeper: LeaseKeeper | None = None
        self._task: asyncio.Task[None] | None = None
        #: Called when the lease was lost, and when there is a new one.
        self.on_change: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        """Takes the first lease. Raises what `LeaseKeeper` raises."""
        self._keeper = await self._take()
        self._task = asyncio.create_task(self._hold(), name="broker-standing")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._keeping.__aexit__(kind, error, traceback)

    @property
    def _keeping(self) -> LeaseKeeper:
        if self._keeper is None:
            raise RuntimeError("a standing begins with `async with`")
        return self._keeper

    @property
    def lease(self) -> LeaseId:
        """The lease to bind keys to; after a loss the old one, which is refused, until a new one
        is there."""
        return self._keeping.id

    @property
    def held(self) -> bool:
        """Whether the lease surely has not ended."""
        return self._keeping.valid(self._clock.monotonic_ms())

    async def _take(self) -> LeaseKeeper:
        keeper = LeaseKeeper(self._coordinator, ttl_ms=self._ttl_ms, clock=self._clock)
        return await keeper.__aenter__()

    async def _hold(self) -> None:
        while True:
            old = self._keeping
            await old.lost.wait()
            _log.warning("this broker's lease was lost; taking a new one")
            self._tell()
            while self._keeping is old:
                try:
                    self._keeper = await self._take()
                except Exception as error:  # noqa: BLE001 - without a lease a broker is none
                    _log.warning("no lease for this broker yet", error=str(error))
                    await asyncio.sleep(_RETRY_MS / 1000)
            self._tell()
            await old.__aexit__(None, None, None)

    def _tell(self) -> None:
        for listener in self.on_change:
            listener()
