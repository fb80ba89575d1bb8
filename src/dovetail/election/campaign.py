"""Takes and holds the coordinator's lease: the doing part of COORDINATOR.

It uses two keys: the holder, bound to a lease, and the term, which stays. It writes both in one
transaction, on condition that there is no holder and the term is the one that was read. When the
answer is lost, it reads the keys before it assumes a failure.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from dovetail.background import Tasks
from dovetail.clock import Clock, SystemClock
from dovetail.coordination import ABSENT, Coordinator, LeaseKeeper, Put, Unchanged
from dovetail.election.effects import Effect
from dovetail.election.election import Identity
from dovetail.election.identifiers import Algorithm, Term
from dovetail.election.lease import LeaseElection
from dovetail.election.settings import ElectionSettings
from dovetail.errors import DovetailError, InvalidSetting, Uncertain
from dovetail.logging import get_logger

#: Pause before a watch that ended is opened again.
WATCH_PAUSE_S = 0.2

_log = get_logger("election")

#: Lets the election decide: it is called with the time and gives effects.
Do = Callable[[Callable[[float], list[Effect]]], None]


class Campaigner:
    """Holds at most one lease for one member."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        name: str,
        environment: str,
        me: Identity,
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        root = f"/streams/{name}/{environment}/"
        self._holder_key, self._term_key = f"{root}holder", f"{root}term"
        self._coordinator = coordinator
        self._me = me
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._stack: AsyncExitStack | None = None
        self._keeper: LeaseKeeper | None = None
        self._campaigning = False
        self._tasks = Tasks()
        self._releases = Tasks()

    def start(self, election: LeaseElection, do: Do) -> None:
        """Begins to watch the holder."""
        self._election, self._do = election, do
        self._tasks.keep(self._watch, name="election/watch-holder")

    @property
    def valid_until_ms(self) -> float | None:
        """Until when the lease is surely held; None if it is not."""
        return None if self._keeper is None else self._keeper.valid_until_ms

    async def campaign(self, term_min: Term) -> None:
        """Tries to take the lease, and reports the outcome to the election.

        An election that has given up waiting may ask again meanwhile: the answer to the first is
        that to both. Two at once would take two leases, and one would be kept alive for ever.
        """
        if self._campaigning:
            return
        self._campaigning = True
        term = None
        try:
            term = await self._take(term_min)
        except DovetailError as error:
            _log.warning("cannot ask for the lease", reason=str(error))
        except Exception as error:  # noqa: BLE001 - a member that hears nothing waits for ever
            _log.exception("cannot ask for the lease: internal error", error)
        finally:
            self._campaigning = False
        if term is None or self._keeper is None:
            await self.release()
            self._do(lambda now: self._election.on_taken(now_ms=now))
            return

        keeper, won = self._keeper, term
        self._tasks.keep(partial(self._wait_lost, keeper), name="election/lease-lost")
        self._do(
            lambda now: self._election.on_held(
                won, valid_until_ms=keeper.valid_until_ms, now_ms=now
            )
        )

    async def release(self) -> None:
        """Gives the lease back, if one is held."""
        stack, self._stack, self._keeper = self._stack, None, None
        if stack is not None:
            # Whoever asked may be ended meanwhile; the others would wait until the lease ends.
            leaving = self._releases.start(stack.aclose(), name="election/give-back")
            await asyncio.shield(leaving)

    async def close(self) -> None:
        """Gives the lease back and ends all tasks."""
        await self._tasks.stop()
        await self.release()
        await self._releases.finish()

    async def _take(self, term_min: Term) -> Term | None:
        holder = await self._coordinator.get(self._holder_key)
        if holder is not None:
            return None
        found = await self._coordinator.get(self._term_key)
        known = 0 if found is None else int(found.value)
        term = Term(max(known + 1, term_min))

        self._stack = AsyncExitStack()
        self._keeper = await self._stack.enter_async_context(
            LeaseKeeper(self._coordinator, ttl_ms=self._timeout_ms, clock=self._clock)
        )
        mine = self._me.incarnation.encode()
        try:
            outcome = await self._coordinator.transact(
                [
                    Put(self._holder_key, mine, self._keeper.id),
                    Put(self._term_key, str(term).encode()),
                ],
                conditions=[
                    Unchanged(self._holder_key, ABSENT),
                    Unchanged(self._term_key, ABSENT if found is None else found.revision),
                ],
            )
        except Uncertain:
            holder = await self._coordinator.get(self._holder_key)
            return term if holder is not None and holder.value == mine else None
        return term if outcome.applied else None

    async def _wait_lost(self, keeper: LeaseKeeper) -> None:
        await keeper.lost.wait()
        if keeper is self._keeper:
            self._do(lambda now: self._election.on_lease_lost(now_ms=now))

    async def _watch(self) -> None:
        """Reports to the election when the holder is gone; a hint, it also looks by itself."""
        while True:
            try:
                seen = await self._coordinator.range(self._holder_key)
                watching = self._coordinator.watch(self._holder_key, after=seen.revision)
                async with watching as changes:
                    async for events in changes:
                        if any(event.value is None for event in events):
                            self._do(lambda now: self._election.on_free(now_ms=now))
            except DovetailError as error:
                _log.warning("watching the lease again", reason=str(error))
            await asyncio.sleep(WATCH_PAUSE_S)


def campaigner_of(
    settings: ElectionSettings, coordinator: Coordinator | None, clock: Clock | None = None
) -> Callable[[Identity], Campaigner] | None:
    """What a `ClusterMember` needs for COORDINATOR. Raises `InvalidSetting` without a service."""
    if settings.algorithm is not Algorithm.COORDINATOR:
        return None
    if coordinator is None:
        raise InvalidSetting(
            "algorithm COORDINATOR needs a coordinator, for example "
            "EtcdCoordinator.open(EtcdSettings(endpoints=('127.0.0.1:2379',)))"
        )
    service = coordinator

    def make(me: Identity) -> Campaigner:
        return Campaigner(
            service,
            name=settings.coordination_stream_id,
            environment=settings.environment_identifier,
            me=me,
            timeout_ms=settings.timeout_ms,
            clock=clock or SystemClock(),
        )

    return make
