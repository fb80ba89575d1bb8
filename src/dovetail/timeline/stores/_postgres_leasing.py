"""Leases messages of a timeline on PostgreSQL: queued messages, ended leases, counts per holder.

The statements are in `_postgres_statements` and `_postgres_order`; the other commands are in
`postgres`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from time import perf_counter
from typing import Any, Final

from dovetail.timeline.engine.lives import Allowance, Pace, is_spent
from dovetail.timeline.message import Handle, Leased, TimelineId
from dovetail.timeline.stores import _postgres_order as rare
from dovetail.timeline.stores import _postgres_statements as sql
from dovetail.timeline.stores import outcomes as shared
from dovetail.timeline.stores._postgres_floors import BOTTOM_MS, Floors
from dovetail.timeline.stores._postgres_pool import Pool
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult

#: Messages whose leases are looked at in one go, some ten milliseconds' work, and how often at most
#: before a lease.
SETTLE_MESSAGES: Final = 2_000
SETTLES_MAX: Final = 5
#: Ends of leases are looked for so often, beside those that we know of. Of others' leases none ends
#: sooner after it began; one that was moved to an earlier end may come back so much later.
SETTLE_MS: Final = 250
#: A lease that is this old is looked at, to forget it if its message is gone. Most are by then.
LOOK_MS: Final = 5_000
#: Behind every message of a time.
_ID_MAX: Final = 2**63 - 1


class PostgresLeasing:
    """The tables of one timeline, and what is leased of them."""

    def __init__(self, pool: "Pool", timeline: TimelineId) -> None:
        self._pool = pool
        self._prefix = pool.prefix(timeline)
        #: Between these two moments no lease ends that we know of.
        self._settled_ms = self._settle_ms = 0
        #: By whom and which buckets: time and id of the last message that a full lease took. Before
        #: it nothing is queued, for all that we know.
        self._passed: dict[tuple[object, ...], tuple[int, int]] = {}
        self.floors = Floors()
        self.ordered = False

    def _sql(self, statement: str) -> str:
        return statement.replace("{t}", self._prefix)

    async def _rows(self, statement: str, *values: Any, changes: bool = True) -> list[Any]:
        text = self._sql(statement)

        async def work(connection: Any) -> list[Any]:
            return list(await connection.fetch(text, *values))

        return await self._pool.run(work, changes=changes)

    def _note_ordered(self, keys: Iterable[str | None]) -> None:
        """Messages of these order keys change, and others may be queued for them, at any time."""
        if any(key is not None for key in keys):
            self.ordered = True
            self._passed.clear()

    async def _ordered_rows(self, statement: str, *values: Any) -> list[Any]:
        """Changes messages, and puts the order keys in order that the rows name behind the id."""

        async def work(connection: Any) -> list[Any]:
            async with connection.transaction():
                rows = list(await connection.fetch(self._sql(statement), *values))
                self._note_ordered(row[1] for row in rows)
                await rare.order(connection, self._sql, (row[1] for row in rows))
                return rows

        return await self._pool.run(work)

    async def lease(
        self,
        asks: Sequence[LeaseAsk],
        *,
        now_ms: int,
        attempts_max: int,
        pace: Pace | None = None,
    ) -> LeaseResult:
        horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
        wanted = sum(ask.limit for ask in asks)

        async def work(connection: Any) -> tuple[list[Any], int, Any]:
            # Some statements, not one transaction: what is queued again is the next one's to lease,
            # and a message that is leased and not yet buried is delivered to nobody, and is buried
            # by the next lease if this is as far as we come.
            await self._settle(connection, wanted, now_ms)
            look_ms = None
            if pace is None:
                rows, died = await self._take(connection, asks, now_ms, attempts_max)
            else:
                rows, died, look_ms = await self._pace(connection, asks, now_ms, attempts_max, pace)
            if len(rows) == wanted:
                # There may be more at once, and nobody has to know when there is more later.
                return rows, died, (now_ms + 1, now_ms + 1)
            next_ms, ends_ms = await connection.fetchrow(self._sql(sql.NEXT), horizon_ms, now_ms)
            times = [time_ms for time_ms in (next_ms, look_ms) if time_ms is not None]
            return rows, died, (min(times, default=None), ends_ms)

        rows, died, times = await self._pool.run(work)
        # By priority, due time and id: three passes over what is nearly sorted, without a function
        # of ours for each row.
        rows.sort(key=itemgetter(1))
        rows.sort(key=itemgetter(3))
        # By due time, which is where it was queued, or before.
        last = {row[0]: (row[3], row[1]) for row in rows}
        rows.sort(key=itemgetter(6), reverse=True)

        leased: list[list[Leased]] = [[] for _ in asks]
        for row in rows:
            leased[row[0] - 1].append(Leased(*row[1:13]))
        for at, (ask, taken) in enumerate(zip(asks, leased, strict=True), 1):
            if taken and len(taken) == ask.limit:
                self._passed[_whose(ask)] = last[at]
            else:
                self._passed.pop(_whose(ask), None)
        return LeaseResult(tuple(map(tuple, leased)), died, times[0], times[1])

    async def _pace(
        self,
        connection: Any,
        asks: Sequence[LeaseAsk],
        now_ms: int,
        attempts_max: int,
        pace: Pace,
    ) -> tuple[list[Any], int, int | None]:
        """As `_take`, one ask after another, within what all brokers together may lease; also when
        more may be leased, if that was too little."""
        taken: list[Any] = []
        died = 0
        async with connection.transaction():
            tokens = await rare.tokens_of(connection, self._sql)
            held = 0
            if pace.in_hand_max:
                held = await connection.fetchval(self._sql(sql.COUNT_HELD), now_ms)
            allowance = Allowance(pace, tokens, held=held, now_ms=now_ms)

            for at, ask in enumerate(asks, 1):
                limited = replace(ask, limit=allowance.limit(ask.limit))
                rows, dead = await self._take(connection, [limited], now_ms, attempts_max)
                allowance.took(len(rows), wanted=ask.limit)
                taken += [(at, *row[1:]) for row in rows]
                died += dead
            await connection.execute(self._sql(rare.KEEP_PACE), tokens.left, tokens.at_ms)
        return taken, died, allowance.look_ms()

    async def _take(
        self, connection: Any, asks: Sequence[LeaseAsk], now_ms: int, attempts_max: int
    ) -> tuple[list[Any], int]:
        """Rows for those who ask; how many died instead, in whose places others are taken."""
        first_end_ms = now_ms + min((ask.lease_ms for ask in asks), default=0)
        self._settle_ms = min(self._settle_ms, first_end_ms)
        limits = [ask.limit for ask in asks]
        floor_ms = self.floors.queue_ms if self._pool.listening else BOTTOM_MS
        bottom = (floor_ms - 1, _ID_MAX)
        passed = [max(bottom, self._passed.get(_whose(ask), bottom)) for ask in asks]

        taken: list[Any] = []
        died = 0
        while True:
            rows = await connection.fetch(
                self._sql(sql.LEASE),
                [ask.consumer for ask in asks],
                [ask.low for ask in asks],
                [ask.high for ask in asks],
                [ask.horizon_ms for ask in asks],
                limits,
                [ask.lease_ms for ask in asks],
                [ask.mask for ask in asks],
                now_ms,
                LOOK_MS,
                [time_ms for time_ms, _ in passed],
                [identity for _, identity in passed],
            )

            # An attempt beyond the last one is no attempt: that message had its chances.
            dying = [row for row in rows if _is_spent(row, attempts_max, now_ms)]
            if not dying and len(rows) == sum(limits):
                return taken + rows, died
            found = Counter(row[0] for row in rows)
            places = Counter(row[0] for row in dying)

            if dying:
                handles = [Handle(row[1], row[2]) for row in dying]
                reasons = [shared.reason_of_death(row[3], row[14], now_ms) for row in dying]
                values = (*columns(handles), reasons, now_ms, 1)
                async with connection.transaction():
                    gone = await connection.fetch(self._sql(sql.BURY), *values)
                    self._note_ordered(row[0] for row in gone)
                    await rare.order(connection, self._sql, (row[0] for row in gone))
                died += len(dying)
            taken += [row for row in rows if not _is_spent(row, attempts_max, now_ms)]

            for at, limit in enumerate(limits):
                limits[at] = places[at + 1]
                if passed[at] != bottom and found[at + 1] < limit:
                    # What came up behind us meanwhile is looked for before we say that this is all.
                    limits[at] += limit - found[at + 1]
                    passed[at] = bottom
            if not any(limits):
                return taken, died

    async def _settle(self, connection: Any, wanted: int, now_ms: int) -> None:
        """Queues what is over, the first first, until there is enough for those who ask."""
        if self._settled_ms <= now_ms < self._settle_ms:
            return
        self._passed.clear()
        began_s = perf_counter()
        alone = self.floors.begin(now_ms=now_ms, listening=self._pool.listening)
        walked = self.floors.queue_ms == BOTTOM_MS
        try:
            await self._queue_ended(connection, wanted, now_ms, alone=alone)
        finally:
            if alone:
                took_ms = (perf_counter() - began_s) * 1000
                self.floors.end(now_ms=now_ms, took_ms=took_ms, walked=walked)

    async def _queue_ended(self, connection: Any, wanted: int, now_ms: int, *, alone: bool) -> None:
        queued = 0
        for _ in range(SETTLES_MAX):
            values = (now_ms, SETTLE_MESSAGES, self.floors.queue_ms, self.floors.ends_ms)
            row = await connection.fetchrow(self._sql(sql.SETTLE), *values)
            looked, over, look_ms, first_ms = row
            settled = looked < SETTLE_MESSAGES
            if alone:
                self.floors.raise_to(first_ms, now_ms=now_ms, settled=settled)
            queued += over
            if settled:
                self._settled_ms = now_ms
                self._settle_ms = min(now_ms + SETTLE_MS, look_ms or now_ms + SETTLE_MS)
                return
            if queued >= wanted:
                return

    def heard(self, due_ms: int) -> None:
        self.floors.lower(due_ms)
        self._note_queued([due_ms])

    def _note_queued(self, times_ms: Iterable[int]) -> None:
        """Messages are queued at these times. What others queue is found at the next settling."""
        if self._passed:
            first_ms = min(times_ms, default=0)
            self._passed = {w: last for w, last in self._passed.items() if last[0] < first_ms}


def _is_spent(row: Sequence[Any], attempts_max: int, now_ms: int) -> bool:
    return is_spent(
        row[5], row[13], attempts_max=attempts_max, due_ms=row[3], ttl_ms=row[14], now_ms=now_ms
    )


def _whose(ask: LeaseAsk) -> tuple[object, ...]:
    return ask.consumer, ask.low, ask.high, ask.mask


def columns(handles: Sequence[Handle]) -> tuple[list[int], list[int]]:
    """Leases as two arrays."""
    return [handle.id for handle in handles], [handle.version for handle in handles]
