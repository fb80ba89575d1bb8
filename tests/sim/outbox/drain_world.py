"""A model of a database, a broker and relays, to run the real `drain` in under every fault.

The database has rows in the order of their commits, one lock with owner and term, and what the
holder has written down. The broker stores record batches and knows a producer's last five batches
by their numbers, as Kafka and Dovetail do. A relay is the real generator; the world performs its
effects, and can kill it, or pause it, give the lock to another, and wake it later at any step. What
a relay has handed to its network can arrive after its death.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dovetail.kafka.client.partitioner import crc32_partitioner
from dovetail.outbox.batch import Batch, Identity, Row
from dovetail.outbox.drain import (
    AskIdentity,
    AskPartitions,
    Collect,
    DeliveryFailed,
    Effect,
    Fate,
    Fetch,
    Load,
    Options,
    Outcome,
    Record,
    Submit,
    drain,
)

PARTITIONS = 3
BATCHES_KNOWN = 5
#: Payload of a message that the broker refuses, and text of headers that cannot be read.
REFUSED = b"refused"
UNREADABLE = "{"


class TermRefused(Exception):
    """The model's database refuses an old term."""


@dataclass
class Stored:
    """A record in the model's log."""

    message_id: str
    key: bytes | None


class Broker:
    """Partitions, and the producers of each."""

    def __init__(self) -> None:
        self.logs: list[list[Stored]] = [[] for _ in range(PARTITIONS)]
        self._producers: dict[tuple[int, int], tuple[int, list[tuple[int, int]]]] = {}
        self._next_id = 0

    def new_identity(self) -> Identity:
        self._next_id += 1
        return Identity(self._next_id, 0)

    def forget(self) -> None:
        """As after a topic was made anew, or a producer was silent for too long; all but the log.

        The next number of a known producer is then out of sequence.
        """
        for key in self._producers:
            self._producers[key] = (-1, [(-10, -9)])

    def take(self, partition: int, batch: Batch, rows: list[Row]) -> Outcome:
        if any(row.payload == REFUSED for row in rows):
            return Outcome(Fate.REFUSED, "model")
        first = batch.first_by_partition[partition]
        span = (first, first + len(rows) - 1)
        known = self._producers.get((partition, batch.producer_id))
        if known is not None:
            if span in known[1]:
                return Outcome(Fate.ACKNOWLEDGED)
            if first != known[1][-1][1] + 1:
                return Outcome(Fate.FORGOTTEN, "model")
        spans = [*(known[1] if known else []), span][-BATCHES_KNOWN:]
        self._producers[partition, batch.producer_id] = (0, spans)
        self.logs[partition] += [Stored(row.message_id, row.order_key) for row in rows]
        return Outcome(Fate.ACKNOWLEDGED)

    def stored(self) -> list[str]:
        return [record.message_id for log in self.logs for record in log]


@dataclass
class Database:
    """The tables."""

    rows: list[Row] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    owner: int = 0
    term: int = 0
    identity: Identity | None = None
    batches: list[Batch] = field(default_factory=list)

    def copy(self) -> "Database":
        return Database(
            list(self.rows),
            list(self.dead),
            self.owner,
            self.term,
            self.identity,
            list(self.batches),
        )

    def record(self, owner: int, term: int, record: Record) -> None:
        if (owner, term) != (self.owner, self.term):
            raise TermRefused
        gone = {*record.done, *(dead.id for dead in record.dead)}
        self.dead += [dead.id for dead in record.dead]
        self.rows = [row for row in self.rows if row.id not in gone]
        self.identity, self.batches = record.identity, list(record.batches)
        if record.finish:
            self.owner = 0


@dataclass
class _Sending:
    batch: Batch
    sets: dict[int, list[Row]]
    after: "_Sending | None"
    outcomes: dict[int, Outcome] | None = None


class Relay:
    """One holder of the lock, from lock to end."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        database = world.database
        database.owner, database.term = number, database.term + 1
        self._number, self._term = number, database.term
        self._snapshot: deque[Row] | None = None
        self.network: deque[_Sending] = deque()
        self._uncollected: deque[_Sending] = deque()
        self._result: Any = None
        self.ended = False
        self._steps = drain(
            identity=database.identity,
            batches=database.batches,
            continues=world.plant == "identity kept after failover",
            options=Options(crc32_partitioner, world.batch_bytes_max, world.compaction),
        )

    def step(self) -> None:
        """One effect."""
        try:
            effect = self._steps.send(self._result)
            self._result = self._perform(effect)
        except (StopIteration, DeliveryFailed, TermRefused) as end:
            self.ended = True
            database = self._world.database
            held = (database.owner, database.term) == (self._number, self._term)
            if isinstance(end, DeliveryFailed) and held:
                database.owner = 0

    def _perform(self, effect: Effect) -> Any:
        database, world = self._world.database, self._world
        match effect:
            case AskPartitions():
                return PARTITIONS
            case AskIdentity():
                return world.broker.new_identity()
            case Load():
                return [row for row in database.rows if row.id in set(effect.ids)]
            case Fetch():
                if self._snapshot is None:
                    self._snapshot = deque(database.rows)
                count = min(world.random.randint(1, 8), len(self._snapshot))
                return [self._snapshot.popleft() for _ in range(count)]
            case Record():
                if world.plant == "term not checked":
                    self._term, self._number = database.term, database.owner
                database.record(self._number, self._term, effect)
                world.remember()
            case Submit():
                after = self._uncollected[-1] if self._uncollected else None
                sending = _Sending(effect.batch, effect.sets, after)
                self.network.append(sending)
                self._uncollected.append(sending)
            case Collect():
                sending = self._uncollected.popleft()
                while sending.outcomes is None:
                    self.deliver()
                return sending.outcomes
        return None

    def deliver(self) -> None:
        """The oldest batch in the network reaches the broker, perhaps more than once."""
        sending = self.network.popleft()
        before = sending.after.outcomes if sending.after is not None else {}
        chained = all(o.fate is Fate.ACKNOWLEDGED for o in (before or {}).values())
        if not chained and self._world.plant != "sent behind a failure":
            sending.outcomes = dict.fromkeys(sending.sets, Outcome(Fate.SKIPPED))
            return
        sending.outcomes = {}
        chance = self._world.random.random
        for partition, rows in sending.sets.items():
            if chance() < self._world.fail_chance:
                sending.outcomes[partition] = Outcome(Fate.FAILED, "not sent")
                continue
            outcome = self._world.broker.take(partition, sending.batch, rows)
            if chance() < self._world.lost_answer_chance:
                again = self._world.broker.take(partition, sending.batch, rows)
                outcome = again if outcome.fate is Fate.ACKNOWLEDGED else outcome
            if chance() < self._world.fail_chance:
                outcome = Outcome(Fate.FAILED, "answer lost for good")
            sending.outcomes[partition] = outcome


class World:
    """One seeded run."""

    def __init__(self, seed: int, *, plant: str = "", failover: bool = False) -> None:
        self.random = random.Random(seed)
        self.plant = plant
        self.failover = failover
        self.broker = Broker()
        self.database = Database()
        self._earlier: deque[Database] = deque(maxlen=4)
        self.compaction = self.random.random() < 0.2
        self.batch_bytes_max = self.random.choice([300, 600, 2000])
        self.fail_chance = self.random.choice([0.0, 0.05, 0.2])
        self.lost_answer_chance = self.random.choice([0.0, 0.3])
        self.published: list[Row] = []
        self.lost_by_failover: set[str] = set()
        self._holder: Relay | None = None
        self._zombies: list[Relay] = []
        self._number = 0

    def remember(self) -> None:
        self._earlier.append(self.database.copy())

    def run(self, steps: int) -> None:
        """Chaos, then calm until everything is sent."""
        for _ in range(steps):
            self._event()
        self.fail_chance = 0.0
        for zombie in self._zombies:
            while not zombie.ended:
                zombie.step()
        for _ in range(10_000):
            if not self.database.rows and self._holder is None:
                return
            self._advance()
        raise AssertionError("the outbox is never drained")

    def _event(self) -> None:
        roll = self.random.random()
        if roll < 0.25:
            self._publish()
        elif roll < 0.80:
            self._advance()
        elif roll < 0.84:
            self._take_over(kill=True)
        elif roll < 0.90:
            self._take_over(kill=False)
        elif roll < 0.97 and self._zombies:
            self._haunt()
        elif self.failover and roll > 0.985 and self._earlier:
            self._fail_over()
        elif self.failover and self.random.random() < 0.05:
            self.broker.forget()

    def _publish(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            number = len(self.published) + 1
            key = self.random.choice([b"a", b"b", b"c", b"d", None])
            payload = REFUSED if self.random.random() < 0.05 else b"x" * self.random.randint(1, 200)
            headers = UNREADABLE if self.random.random() < 0.03 else None
            row = Row(number, key, None, headers, payload, f"m{number}", 0)
            self.published.append(row)
            self.database.rows.append(row)

    def _advance(self) -> None:
        if self._holder is None or self._holder.ended:
            self._number += 1
            self._holder = Relay(self, self._number)
        self._holder.step()
        if self._holder.ended:
            self._holder = None

    def _take_over(self, *, kill: bool) -> None:
        """The holder dies or stands still; the next step is another's."""
        if self._holder is not None:
            if kill:
                while self._holder.network and self.random.random() < 0.5:
                    self._holder.deliver()
            else:
                self._zombies.append(self._holder)
            self._holder = None

    def _haunt(self) -> None:
        zombie = self.random.choice(self._zombies)
        if zombie.network and self.random.random() < 0.5:
            zombie.deliver()
        else:
            zombie.step()
        if zombie.ended:
            self._zombies.remove(zombie)

    def _fail_over(self) -> None:
        """The database goes on from an earlier state; every connection broke."""
        self._holder = None
        self._zombies.clear()
        earlier = self._earlier[0].copy()
        kept = {row.id for row in earlier.rows} | set(earlier.dead)
        sent = set(self.broker.stored())
        for row in self.published:
            if row.id not in kept and row.message_id not in sent:
                self.lost_by_failover.add(row.message_id)
        self.database = earlier
        self._earlier.clear()
