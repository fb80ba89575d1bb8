"""Due messages: consumers that come, go, die, hang and wake, and a database that does as well."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.database_servers import PostgresServer
from tests.process.timeline.consumer_books import Consumers, check
from tests.process.timeline.consumer_child import POISON
from tests.soak.part import Heal

import dovetail
from dovetail.errors import DovetailError
from dovetail.timeline import Dovetail, Draft
from dovetail.timeline.config import TimelineConfig

CONSUMERS = 4
BATCH = 10
PAUSE_S = 1.0
#: One message in so many makes its handler fail twice, with an error that cannot be printed.
POISON_EVERY = 50
#: Until all that is there has been handled, behind the last fault.
DRAIN_S_MAX = 300.0


class TimelinePart:
    """One timeline at some brokers, its consumers and its database."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        database: PostgresServer,
        folder: Path,
        rng: random.Random,
        pids: Callable[[], Mapping[str, int]],
    ) -> None:
        folder.mkdir()
        self.name = name
        self.pids = pids
        self._bootstrap = bootstrap
        self._database = database
        self._consumers = Consumers(folder, bootstrap.split(","), timeline="work", rng=rng)
        self._sent: set[int] = set()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._created = threading.Event()
        self._thread.start()
        self._created.wait(DRAIN_S_MAX)
        for _ in range(CONSUMERS):
            self._consumers.come()

    def faults(self) -> Sequence[Callable[[], Heal]]:
        return [
            self.kill_a_consumer,
            self.let_a_consumer_go,
            self.hang_a_consumer,
            self.kill_the_database,
            self.pause_the_database,
        ]

    def kill_a_consumer(self) -> Heal:
        dead = self._consumers.kill()
        return lambda: self._consumers.come(dead)

    def let_a_consumer_go(self) -> Heal:
        self._consumers.go()
        return self._consumers.come

    def hang_a_consumer(self) -> Heal:
        hanging = self._consumers.hang()
        return lambda: self._consumers.wake(hanging)

    def kill_the_database(self) -> Heal:
        self._database.kill()
        return self._database.start

    def pause_the_database(self) -> Heal:
        self._database.pause()
        return self._database.resume

    def done(self) -> int:
        if self._error is not None:
            raise self._error
        self._consumers.fail_if_ended()
        return len(self._consumers.handled())

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(DRAIN_S_MAX)
        assert not self._thread.is_alive(), f"{self.name}: the producer hangs"
        deadline = time.monotonic() + DRAIN_S_MAX
        while not self._sent <= self._consumers.handled():
            left = self._sent - self._consumers.handled()
            assert time.monotonic() < deadline, f"{self.name}: {len(left)} are not handled"
            time.sleep(0.5)
        asyncio.run(self._until_empty(deadline))

    async def _until_empty(self, deadline: float) -> None:
        async with dovetail.connect(self._bootstrap) as d:
            while True:
                counts = (await d.timeline("work").describe()).counts
                if (counts.waiting, counts.due, counts.leased) == (0, 0, 0):
                    assert counts.dead == 0
                    return
                assert time.monotonic() < deadline, f"{self.name}: not empty: {counts}"
                await asyncio.sleep(0.5)

    def judge(self) -> str:
        return check(self._consumers)

    def end(self) -> None:
        self._stop.set()
        self._consumers.end()

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except BaseException as error:
            self._error = error

    async def _produce(self) -> None:
        async with dovetail.connect(self._bootstrap) as d:
            await _retried(lambda: _create(d))
            self._created.set()
            number = 0
            while not self._stop.is_set():
                drafts = []
                for _ in range(BATCH):
                    number += 1
                    body = POISON if number % POISON_EVERY == 0 else b"x"
                    delay = self._consumers.rng.choice([0, 0.2, 1, 3])
                    drafts.append(Draft(body, delay=delay, key=f"k\u00e4-{number}"))
                items = await _retried(lambda d=d, drafts=drafts: _schedule(d, drafts))
                self._sent |= items
                await asyncio.sleep(PAUSE_S)


async def _create(d: Dovetail) -> set[int]:
    config = TimelineConfig(window_ms=300, overtake_ms=200, attempts_max=100)
    await d.timeline("work").create(config)
    return set()


async def _schedule(d: Dovetail, drafts: list[Draft]) -> set[int]:
    return {item.id for item in await d.timeline("work").schedule_many(drafts)}


async def _retried(call: Callable[[], "asyncio._CoroutineLike[set[int]]"]) -> set[int]:
    """For as long as it takes: something may be away for a minute."""
    while True:
        try:
            return await call()
        except DovetailError as error:
            assert error.retriable, error
