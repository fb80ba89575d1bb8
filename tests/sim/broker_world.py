"""The simulated cluster of brokers as a whole: who is there, what clients do, what must be true.

Without faults of its own: `test_brokers_sim.py` brings them by chance, `test_broker_scenes.py`
one at a time.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from tests.sim.broker_clients import NoAnswer, Stream, ask, keep_producing, start
from tests.sim.broker_history import Author, History, named_in
from tests.sim.brokers import BrokerWires, Life, SimCoordination, announced, sweep_host
from tests.sim.storage_hosts import StorageHost

from dovetail.coordination import membership
from dovetail.errors import DovetailError, TopicExists, TopicUnknown
from dovetail.log import checkpoint
from dovetail.log.topic import TopicConfig, TopicRecord, TopicState
from dovetail.storage import chain
from dovetail.storage.quorum.arithmetic import Quorum

#: A broker that was cut off tries again every second, one that is stuck is given five, balance
#: waits for three; all of that one after the other, twice.
HEAL_S = 50.0
#: Batches that every partition must take after everything has healed.
PROGRESS = 3
NAMES = ["a", "b", "c"]
PARTITIONS_MAX = 4

#: (quorum, storage nodes); with a spare, and without.
SHAPES = [
    (Quorum(3, 3, 2), 3),
    (Quorum(3, 3, 2), 4),
    (Quorum(3, 3, 2), 5),
    (Quorum(3, 2, 2), 4),
    (Quorum(4, 3, 2), 5),
]

#: What a run looks at: everything, two processes under one number, or topics and old views.
FOCUSES = ["all", "twins", "topics"]


class World:
    """Everybody, and what they do to each other."""

    stream_type: type[Stream] = Stream

    def __init__(self, seed: int, *, brokers: int | None = None) -> None:
        self.rng = random.Random(seed)
        quorum, nodes = self.rng.choice(SHAPES)
        self.faults: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.calm = False
        self.ttl_ms = self.rng.choice([1_000, 2_000, 3_000])
        self.history = History(
            lives=lambda number: announced(self.service, number),
            holds=lambda node, ledger: ledger in self.hosts[node].store.ledgers(),
            on_topic=self._on_topic,
        )
        self.service = SimCoordination(self.rng, lambda: self.history)
        self.hosts = {
            number: StorageHost(number, self.rng, fault=self.fault, on_back=self._on_back)
            for number in range(100, 100 + nodes)
        }
        self.config = TopicConfig(
            retention_ms=-1,
            retention_bytes=-1,
            ledger_bytes_max=self.rng.choice([1_000, 4_000]),
            ledger_age_ms_max=1 << 40,
            batch_bytes_max=100_000,
            quorum=quorum,
        )
        self.numbers = range(1, 1 + (brokers or self.rng.randint(2, 4)))
        self.wires = {n: BrokerWires(self.hosts, self.rng) for n in self.numbers}
        #: All lives ever, so that they can be taken apart; the newest of a number is the last.
        self.lives: list[Life] = []
        self.twins: set[Life] = set()
        self.streams: dict[tuple[str, int], Stream] = {}
        self.pause_s = self.rng.choice([0.5, 1.5])
        self.focus = FOCUSES[seed % len(FOCUSES)]

    def fault(self, name: str) -> None:
        self.faults[name] += 1

    def _on_back(self, host: StorageHost) -> None:
        """As a storage node does that starts; brokers hear of it."""
        start(sweep_host(host, self.service))
        for life in self.live_ones():
            life.node_is_back(host.number)

    def later(self, seconds: float, action: object, *args: object) -> None:
        asyncio.get_running_loop().call_later(seconds, action, *args)  # type: ignore[arg-type]

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if self.failure is None:
            known = isinstance(error, BaseException)
            self.failure = error if known else AssertionError(context["message"])  # type: ignore[assignment]

    # Brokers

    def live_ones(self) -> list[Life]:
        return [life for life in self.lives if life.serves]

    def no_twins(self) -> list[Life]:
        """Those who never shared their number: a twin gives away and takes in the other's name."""
        return [life for life in self.live_ones() if life not in self.twins]

    def newest(self, number: int) -> Life | None:
        return next((x for x in reversed(self.lives) if x.author.number == number), None)

    def start_broker(self, number: int) -> None:
        """Starts a broker, unless it runs."""
        last = self.newest(number)
        if last is None or not last.process.alive:
            self.start_another(number)

    def new_life(self, author: Author) -> Life:
        """A process of a broker."""
        return Life(author, **self._surroundings(author))

    def _surroundings(self, author: Author) -> dict[str, Any]:
        return {
            "service": self.service,
            "hosts": self.hosts,
            "wires": self.wires[author.number],
            "config": self.config,
            "ttl_ms": self.ttl_ms,
            "rng": self.rng,
        }

    def start_another(self, number: int) -> None:
        """A new process under this number, whatever became of the last one."""
        life = self.new_life(Author(number, len(self.lives)))
        running = [x for x in self.lives if x.author.number == number and x.process.alive]
        self.lives.append(life)
        if running:
            self.twins.update(running, [life])

    async def keep_brokers_up(self) -> None:
        """As systemd does: what has ended is started again, sooner or later."""
        while True:
            await asyncio.sleep(1.0)
            for number in self.numbers:
                if self.calm or self.rng.random() < 0.3:
                    self.start_broker(number)

    # Topics

    def _on_topic(self, record: TopicRecord, before: TopicRecord | None) -> None:
        if record.state is TopicState.DELETING:
            for (topic_id, _), stream in self.streams.items():
                if topic_id == record.id:
                    stream.deleted = True
        elif record.state is TopicState.READY:
            for number in range(record.partitions):
                if (record.id, number) not in self.streams:
                    stream = self.stream_type(
                        record.id,
                        record.name,
                        number,
                        producer_id=len(self.streams) + 1,
                        rng=self.rng,
                    )
                    self.streams[record.id, number] = stream
                    start(keep_producing(stream, self.live_ones, self.rng, self.pause_s))

    def streams_alive(self) -> list[Stream]:
        return [stream for stream in self.streams.values() if not stream.deleted]

    async def administer(self) -> None:
        """Somebody who creates, grows and deletes topics all the time."""
        while not self.calm:
            await asyncio.sleep(self.rng.random() * (0.4 if self.focus == "topics" else 1.5))
            if not self.live_ones():
                continue
            life, name = self.rng.choice(self.live_ones()), self.rng.choice(NAMES)
            with contextlib.suppress(DovetailError, NoAnswer):
                await ask(life, self._admin_call(life, name), wait_s=3)

    def _admin_call(self, life: Life, name: str) -> Callable[[], Awaitable[object]]:
        log, kind = life.log, self.rng.random()
        assert log is not None
        count = self.rng.randint(1, PARTITIONS_MAX)
        if kind < 0.5:
            return lambda: log.create_topic(name, partitions=count)
        if kind < 0.75:
            return lambda: log.delete_topic(name)
        return lambda: log.add_partitions(name, count)

    # Healing

    def heal(self) -> None:
        self.calm = True
        for number in self.numbers:
            self.wires[number].heal()
            self.start_broker(number)
        for life in self.lives:
            if life.process.paused:
                life.process.wake()
        for host in self.hosts.values():
            host.disk.calls_until_cut = None
            host.start()

    # What must be true in the end

    def unsettled(self) -> str:
        """What keeps the cluster from being as it should be; empty if nothing does."""
        for topic in self.history.topics.values():
            if topic.state is not TopicState.READY:
                return f"topic {topic.name} is {topic.state.value}, master {topic.master}"
        current = [self.newest(number) for number in self.numbers]
        lives = [life for life in current if life is not None and life.serves]
        if len(lives) < len(self.numbers) or any(life.leaving for life in lives):
            return "not all brokers run"
        if self.live_ones() != lives and sorted(map(id, self.live_ones())) != sorted(
            map(id, lives)
        ):
            return "a replaced process still runs"
        owned: Counter[int] = Counter(dict.fromkeys(self.numbers, 0))
        for topic in self.history.topics.values():
            for number in range(topic.partitions):
                stream = self.streams.get((topic.id, number))
                if stream is None:
                    return f"{topic.name}-{number} has no client yet"
                owners = [life for life in lives if stream.open_at(life) is not None]
                if len(owners) != 1:
                    return f"{stream} is open on {[o.author.number for o in owners]}"
                owned[owners[0].author.number] += 1
        if max(owned.values()) - min(owned.values()) > 1:
            return f"out of balance: {dict(owned)}"
        return ""

    def owner_of(self, stream: Stream) -> Life:
        owners = [life for life in self.live_ones() if stream.open_at(life) is not None]
        assert len(owners) == 1, f"{stream} was settled, and is open on {len(owners)} brokers"
        return owners[0]

    async def settle(self) -> None:
        """Waits until all is well and every partition has taken records."""
        deadline = asyncio.get_running_loop().time() + HEAL_S
        goals: dict[tuple[str, int], int] = {}
        while True:
            why = self.unsettled()
            for key, stream in self.streams.items():
                goals.setdefault(key, stream.acknowledged + PROGRESS)
                if not why and not stream.deleted and stream.acknowledged < goals[key]:
                    why = f"{stream} takes no records"
            if not why:
                return
            self.check_failure()
            assert asyncio.get_running_loop().time() < deadline, f"not healed: {why}"
            await asyncio.sleep(0.1)

    def check_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def check_everything(self) -> None:
        """Sweeps, then reads every record of every partition from the storage."""
        for host in self.hosts.values():
            await sweep_host(host, self.service)
        named = self._named()
        for stream in self.streams_alive():
            offset = 0
            while offset < stream.records_acknowledged:
                behind = await stream.read(self.owner_of(stream), offset=offset, everything=True)
                assert behind > offset, f"{stream}: acknowledged record {offset} is lost"
                offset = behind
            stream.checked = offset
        for host in self.hosts.values():
            left = host.store.ledgers() - named
            assert not left - self._named(), f"node {host.number} has ledgers of nobody: {left}"

    def _named(self) -> set[int]:
        records = self.history.partitions.values()
        return {info.ledger for record in records for info in named_in(record)}

    async def names_are_free(self) -> None:
        """Every name that is not in use can be given again, and every one in use cannot."""
        for name in NAMES:
            life = self.rng.choice(self.live_ones())
            log, taken = life.log, name in self.history.topics
            assert log is not None
            create = partial(log.create_topic, name, partitions=1)
            try:
                await ask(life, create, wait_s=12)
            except TopicExists:
                # Somebody's request that was held until now may have been faster.
                assert name in self.history.topics, f"{name} was deleted and is refused"
            except TopicUnknown:
                pass  # Such a request has deleted it again.
            else:
                assert not taken, f"{name} was given twice"

    def digest(self) -> str:
        """The same for two runs of a seed."""
        told = hashlib.sha256()
        for events in self.service.history:
            told.update(repr(events).encode())
        for key, stream in self.streams.items():
            told.update(f"{key}{stream.acknowledged}{stream.checked}".encode())
        return told.hexdigest()


class _Defects(logging.Handler):
    """Work that met a defect says so in the log, and goes on."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if "defect" in record.getMessage():
            self._world.failed(None, {"message": f"{record.__dict__}"})  # type: ignore[arg-type]


@contextlib.contextmanager
def repeatable(world: World) -> Iterator[None]:
    """Ids by the seed, checkpoints every few entries, pages of two ledgers, no log but of defects.

    A broker that declines does so for 8 s instead of 30, so that it fits into a run.
    """
    ids = random.Random(world.rng.random())
    logger, handler = logging.getLogger("dovetail"), _Defects(world)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with (
            mock.patch("uuid.uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
            mock.patch.object(checkpoint, "CHECKPOINT_ENTRIES", 6),
            mock.patch.object(chain, "PAGE_BYTES", 250),
            mock.patch.object(membership, "DECLINE_MS", 8_000),
        ):
            yield
    finally:
        logger.propagate = True
        logger.removeHandler(handler)
