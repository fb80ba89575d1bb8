"""A world for chains: a broker with real batches, attempts that overlap, sleep and die, a bad net.

Everything that an attempt sends is a message that arrives late, twice, or never, in any order; its
answer may be lost. A step of the world is one of these: a message arrives, one attempt does one
thing, one dies and another begins, a topic grows, a job is cancelled, two days pass and brokers
forget producers.

The function of a job decides anew every time, so that attempts disagree; what follows is a function
of the stored outcome. After the turmoil an attempt works alone, and then everything is counted.
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.kafka.client.client import Partition
from dovetail.record_batch import NewRecord, build_batch, read_header
from dovetail.spark.decoder import BatchView, batches_in
from dovetail.teams.chains.chain import (
    AGE_S_MAX,
    Chain,
    ChainBroken,
    Effect,
    Follow,
    Placed,
    Read,
    Send,
)
from dovetail.teams.chains.rows import DEAD, OUTCOME, Row, decode_rows, follow_name
from dovetail.teams.chains.snapshot import Entry, Snapshot, created

INPUT: Partition = ("input", 0)
RESULTS: tuple[Partition, ...] = (("results", 0), ("results", 1))
LETTERS: Partition = ("dead", 0)
PRODUCER = 77
#: The offsets of the jobs; a compacted topic has gaps.
JOBS = (0, 1, 3, 4, 6)
INPUT_END = 8
COUNT = "partitions"
TWO_DAYS_S = 2 * 86_400.0


class Violation(Exception):
    """A promise of the chain is broken."""


class Broker:
    """Logs of real batches, what is remembered of producers, and one group."""

    def __init__(self) -> None:
        self.logs: dict[Partition, list[tuple[int, bytes]]] = {}
        self.ends: dict[Partition, int] = {}
        #: What retention has removed.
        self.starts: dict[Partition, int] = {}
        self.producers: dict[Partition, deque[tuple[int, int, int]]] = {}
        self.group: dict[Partition, tuple[int, str]] = {}
        #: Jobs that were cancelled, in order; acknowledged means that it is in here.
        self.cancels: list[int] = []
        for place in (*RESULTS, LETTERS, ("next", 0)):
            self.create(place)

    def create(self, place: Partition) -> None:
        self.logs[place], self.ends[place], self.starts[place] = [], 0, 0
        self.producers[place] = deque(maxlen=5)

    def count(self, topic: str) -> int:
        return sum(1 for one in self.logs if one[0] == topic)

    def append(self, place: Partition, data: bytes) -> int | None:
        """The offset, also of a batch that was stored before; None: refused."""
        header = read_header(data)
        known = self.producers[place]
        if header.producer_id == PRODUCER:
            for sequence, count, offset in known:
                if (sequence, count) == (header.base_sequence, header.record_count):
                    return offset
            if known and sum(known[-1][:2]) != header.base_sequence:
                return None
            known.append((header.base_sequence, header.record_count, self.ends[place]))
        offset = self.ends[place]
        self.logs[place].append((offset, offset.to_bytes(8, "big") + data[8:]))
        self.ends[place] += header.record_count
        return offset

    def read(self, place: Partition, start: int) -> list[BatchView]:
        found = [data for offset, data in self.logs[place] if offset >= start]
        return [view for data in found for view in batches_in(data, where="sim")]

    def remove(self, place: Partition) -> None:
        """Retention removes all that is there."""
        self.logs[place], self.starts[place] = [], self.ends[place]

    def rows(self, place: Partition) -> list[Row]:
        views = self.read(place, 0)
        return [
            row for one in views if one.producer_id == PRODUCER for row in decode_rows(one, place)
        ]


def outcome_of(
    job: int, *, attempt: int, count: int, chance: random.Random, cancelled: bool
) -> Row:
    """What a function makes of a job, this time."""
    follows = "C" if cancelled else chance.choice("0112D")
    value = b"%d/%d/%s" % (attempt, chance.randrange(1000), follows.encode())
    return Row(job, OUTCOME, b"k%d" % job, value, ((COUNT, b"%d" % count),))


def follows_of(outcome: Row, count: int | None = None) -> list[Placed]:
    """What follows from an outcome; the number of partitions is the one that is stored."""
    assert outcome.value is not None
    number = int(dict(outcome.headers)[COUNT]) if count is None else count
    kind = outcome.value[-1:]
    if kind == b"C":
        return []
    if kind == b"D":
        return [(LETTERS, Row(outcome.job, DEAD, outcome.key, outcome.value))]
    return [
        (
            ("next", (outcome.job + at) % number),
            Row(outcome.job, follow_name(at), outcome.key, outcome.value),
        )
        for at in range(int(kind))
    ]


@dataclass
class Message:
    """Something on its way to the broker."""

    kind: str
    attempt: "Attempt"
    place: Partition | None = None
    data: bytes = b""
    positions: dict[Partition, tuple[int, str]] = field(default_factory=dict)


class Attempt:
    """One attempt: it begins, takes jobs, decides, writes, commits; `step` does one of these."""

    #: Planted bugs change these.
    chain_type: type[Chain] = Chain
    ends_first = True
    waits_for_commit = True
    sleeps_for_ever = False
    counts_now = False
    reads_old_cancels = True
    knows_the_copy = True
    recovers_at_ends = False

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number, self.chance = world, number, world.chance
        self.chain: Chain | None = None
        self.alive = True
        self.woke_s = world.now_s
        self._ends: dict[Partition, int] | None = None
        self._commit: Message | None = None
        self._looked: dict[Partition, tuple[int, str]] | None = None
        self.lanes: dict[Partition, Read | Send | Message] = {}
        self._taken = 0
        self._cancels: set[int] = set()
        self._heard = 0
        self.running: list[int] = []
        self.follow: list[Row] = []

    # --- beginning -------------------------------------------------------------------------------

    def begin(self) -> None:
        """One step of the beginning: ends, then the group, then what is missing there."""
        broker = self.world.broker
        if self._commit is not None:
            if self._commit in self.world.net and self.waits_for_commit:
                return
            self._commit = self._ends = self._looked = None
            return
        if not self.ends_first and self._looked is None:
            self._looked = dict(broker.group)
            return
        if self._ends is None:
            self._ends = dict(broker.ends)
            return
        stored = dict(broker.group) if self._looked is None else self._looked
        if INPUT not in stored and self.world.copy and self.knows_the_copy:
            self._commit = self._recover(self.world.copy)
            return
        missing = {place: end for place, end in self._ends.items() if place not in stored}
        if INPUT not in stored or missing:
            position = stored[INPUT][0] if INPUT in stored else 0
            first = created(INPUT, position, missing, at_ms=0, term=0)
            self._commit = self._commit_of(first)
            if not self.waits_for_commit:
                self._start(created(INPUT, position, self._ends, at_ms=0, term=0))
            return
        snapshot = Snapshot.of(INPUT, stored)
        assert snapshot is not None
        self._start(snapshot)

    def _recover(self, copy: dict[Partition, tuple[int, str]]) -> Message:
        """Positions are gone: an older snapshot, and the beginning of all that it does not know."""
        ends = self.world.broker.ends
        unknown = {place: 0 for place in ends if place not in copy}
        if self.recovers_at_ends:
            unknown = {place: ends[place] for place in unknown}
        new = created(INPUT, copy[INPUT][0], unknown, at_ms=0, term=0)
        texts = new.texts()
        positions = {place: (at, texts[place]) for place, at in new.positions().items()}
        return self._send_commit(positions | copy)

    def _start(self, snapshot: Snapshot) -> None:
        self.chain = self.chain_type(snapshot, producer_id=PRODUCER, results=RESULTS)
        self._ends = self._commit = None
        self._taken = snapshot.position
        if not self.reads_old_cancels:
            self._heard = len(self.world.broker.cancels)
        self._hear()
        self.do(self.chain.begin(now_s=self.world.now_s))

    def adopt(self, place: Partition) -> bool:
        """One step to use an output partition that the chain does not have; True when it does."""
        assert self.chain is not None
        if self.chain.knows(place):
            return True
        broker = self.world.broker
        if self._commit is not None:
            if self._commit not in self.world.net:
                self._commit = self._ends = None
        elif self._ends is None:
            self._ends = {place: broker.ends[place]}
        elif place in broker.group:
            entry = Entry.of(broker.group[place])
            self._ends = None
            self.do(self.chain.add(place, entry, now_s=self.world.now_s))
            return True
        elif place in self._ends:
            entry = Entry(self._ends[place], 0, 0, self._ends[place], 0)
            self._commit = self._send_commit({place: (entry.offset, entry.text)})
        else:
            self._ends = None
        return False

    def _commit_of(self, snapshot: Snapshot) -> Message:
        texts = snapshot.texts()
        return self._send_commit({k: (v, texts[k]) for k, v in snapshot.positions().items()})

    def _send_commit(self, positions: dict[Partition, tuple[int, str]]) -> Message:
        message = Message("commit", self, positions=positions)
        self.world.net.append(message)
        return message

    # --- working ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Does one thing."""
        if self.world.now_s - self.woke_s > AGE_S_MAX and not self.sleeps_for_ever:
            self.alive = False
            return
        self.woke_s = self.world.now_s
        try:
            if self.chain is None:
                self.begin()
            else:
                self._work(self.chain)
        except ChainBroken as error:
            self.alive = False
            self.world.loud.append(str(error))

    def _work(self, chain: Chain) -> None:
        choices = [lambda place=place: self._lane(chain, place) for place in self.lanes]
        choices.append(lambda: self.do(chain.send(now_s=self.world.now_s, now_ms=1)))
        choices.append(lambda: self._snapshot(chain))
        choices.append(self._hear)
        if chain.ready and chain.in_hand < 3:
            choices.append(lambda: self._take(chain))
        if self.running:
            choices += [lambda: self._decide(chain)] * 2
        if self.follow:
            choices += [lambda: self._follow(chain)] * 2
        self.chance.choice(choices)()

    def do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Follow):
                self.follow.append(effect.outcome)
            elif isinstance(effect, Read | Send):
                self.lanes[effect.place] = effect

    def _lane(self, chain: Chain, place: Partition) -> None:
        """One step of what is under way for an output partition."""
        now_s, doing = self.world.now_s, self.lanes[place]
        if isinstance(doing, Read):
            self._read(chain, place, doing)
        elif isinstance(doing, Send):
            if now_s > doing.until_s:
                self.refused(place)
                return
            message = Message("write", self, place, doing.batch.data)
            self.world.net.append(message)
            self.lanes[place] = message
        elif self.chance.random() < 0.1:
            self.refused(place)

    def _read(self, chain: Chain, place: Partition, doing: Read) -> None:
        broker = self.world.broker
        if doing.start < (start := broker.starts[place]):
            now_ms = int(self.world.now_s * 1000)
            chain.check_start(place, log_start=start, now_ms=now_ms)
            doing = Read(place, start, doing.end)
        views = broker.read(place, doing.start)
        if views and self.chance.random() < 0.3:
            # A fetch ends somewhere; the rest comes with the next.
            views = views[:1]
        seen = views[-1].offset_end if views else broker.ends[place]
        self.do(chain.on_read(place, views, seen=seen, log_start=0))
        wanted = broker.ends[place] if doing.end is None else doing.end
        if seen >= wanted:
            del self.lanes[place]
            chain.on_end(place)
        else:
            self.lanes[place] = Read(place, seen, doing.end)

    def refused(self, place: Partition) -> None:
        assert self.chain is not None
        del self.lanes[place]
        self.do(self.chain.on_refused(place, reason="refused", now_s=self.world.now_s))

    def stored(self, place: Partition, offset: int) -> None:
        assert self.chain is not None
        del self.lanes[place]
        self.do(self.chain.on_stored(place, offset))

    def _take(self, chain: Chain) -> None:
        left = [job for job in JOBS if job >= self._taken]
        if not left:
            chain.skip(INPUT_END)
            return
        self._taken = left[0] + 1
        effects = chain.take(left[0])
        if not effects:
            self.running.append(left[0])
        self.do(effects)

    def _hear(self) -> None:
        """Reads on in the cancels: what runs and is not wanted ends so."""
        self._cancels |= set(self.world.broker.cancels[self._heard :])
        self._heard = len(self.world.broker.cancels)

    def _decide(self, chain: Chain) -> None:
        job = self.running.pop(self.chance.randrange(len(self.running)))
        count = self.world.broker.count("next")
        outcome = outcome_of(
            job,
            attempt=self.number,
            count=count,
            chance=self.chance,
            cancelled=job in self._cancels,
        )
        follows = self._follows(outcome)
        if not self._adopt_all(follows):
            self.running.append(job)
            return
        chain.decide(RESULTS[job % 2], outcome, follows)

    def _follow(self, chain: Chain) -> None:
        outcome = self.follow[0]
        follows = self._follows(outcome)
        if self._adopt_all(follows):
            self.follow.pop(0)
            chain.follow(outcome.job, follows)

    def _adopt_all(self, follows: list[Placed]) -> bool:
        known = [self.adopt(place) for place, _ in follows]
        return all(known)

    def _follows(self, outcome: Row) -> list[Placed]:
        count = self.world.broker.count("next") if self.counts_now else None
        return follows_of(outcome, count)

    def _snapshot(self, chain: Chain) -> None:
        if self.chance.random() < 0.3:
            self._commit_of(chain.snapshot(now_ms=1))


class World:
    """The broker, the net, and two to four attempts at once."""

    def __init__(
        self, seed: int, *, attempt_type: type[Attempt] = Attempt, expiry: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker()
        self.net: list[Message] = []
        self.now_s = 0.0
        #: What the checkpoint has of the group.
        self.copy: dict[Partition, tuple[int, str]] = {}
        #: What attempts failed loudly with.
        self.loud: list[str] = []
        self._type, self._expiry = attempt_type, expiry
        self._started = 0
        self.attempts: list[Attempt] = []
        self.width = self.chance.randint(2, 4)
        # Often all of them find a group that is empty.
        for _ in range(self.chance.choice((0, self.width))):
            self.start()

    def run(self, steps: int) -> None:
        """Turmoil, then one attempt alone. Raises `Violation`."""
        for _ in range(steps):
            self._step()
        self._alone()
        self._count()

    def _step(self) -> None:
        self.now_s += 0.01
        chance = self.chance.random()
        self.attempts = [one for one in self.attempts if one.alive]
        if len(self.attempts) < self.width and chance < 0.3:
            self.start()
        elif self.attempts and chance < 0.01:
            self.attempts.pop(self.chance.randrange(len(self.attempts)))
        elif chance < 0.02:
            self._stranger()
        elif chance < 0.025 and self.broker.count("next") < 2:
            self.broker.create(("next", 1))
        elif chance < 0.028:
            self.broker.cancels.append(self.chance.choice(JOBS))
        elif self._expiry and chance < 0.033:
            self._two_days()
        elif self.net and chance < 0.5:
            self._arrive(self.net.pop(self.chance.randrange(len(self.net))))
        elif self.attempts:
            # Uneven: one of them works, the others sleep for a while.
            at = self.chance.randrange(len(self.attempts))
            for _ in range(self.chance.choice((1, 1, 4, 12))):
                if self.attempts[at].alive:
                    self.attempts[at].step()

    def start(self) -> Attempt:
        self._started += 1
        made = self._type(self, self._started)
        self.attempts.append(made)
        return made

    def _stranger(self) -> None:
        place = self.chance.choice(list(self.broker.logs))
        self.broker.append(place, build_batch([NewRecord(1, b"x", b"y")]))

    def positions_are_lost(self) -> None:
        """One attempt works, and dies; then nobody does for a month, and the group is forgotten.

        The checkpoint has a copy from some time before.
        """
        first = self.start()
        self.let_work(first, to=self.chance.choice(JOBS[:3]))
        self.copy = dict(self.broker.group)
        if self.chance.random() < 0.5:
            self.broker.create(("next", 1))
        self.let_work(first, to=self.chance.choice(JOBS[3:]))
        for _ in range(self.chance.randrange(60)):
            first.step()
        self.attempts.remove(first)
        self.net = []
        self.broker.group.clear()
        for known in self.broker.producers.values():
            known.clear()
        self._alone()
        self._count()

    def _two_days(self) -> None:
        """Brokers forget producers; what was sent by then has arrived or never will."""
        self.now_s += TWO_DAYS_S
        self.net = [one for one in self.net if self._type.sleeps_for_ever]
        for known in self.broker.producers.values():
            known.clear()

    def _arrive(self, message: Message) -> None:
        fate = self.chance.random()
        if fate < 0.05:
            return
        if message.kind == "commit":
            if fate < 0.15:
                # It comes twice, now and late.
                self.net.append(message)
            self._store(message.positions)
            return
        assert message.place is not None
        offset = self.broker.append(message.place, message.data)
        waits = message.attempt.alive and message.attempt.lanes.get(message.place) is message
        if waits and fate < 0.9:
            if offset is None:
                message.attempt.refused(message.place)
            else:
                message.attempt.stored(message.place, offset)

    def _store(self, positions: dict[Partition, tuple[int, str]]) -> None:
        """A commit, of which sometimes only a part gets through."""
        parts: dict[Partition, Any] = positions
        if self.broker.group and self.chance.random() < 0.3:
            parts = {k: v for k, v in positions.items() if self.chance.random() < 0.5}
        self.broker.group |= parts
        if INPUT in parts:
            self._check_done(below=parts[INPUT][0])

    def late_beginner(self) -> None:
        """One attempt looks around and sleeps; when it goes on, another has done some jobs."""
        late, early = self.start(), self.start()
        late.step()
        self.let_work(early, to=JOBS[2])
        self.let_work(late, to=INPUT_END)
        self._count()

    def records_are_removed(self) -> None:
        """One attempt ends its jobs, but its last snapshots are lost. Nobody works for two days,
        and retention removes its outcomes; who goes on then must not do the jobs again."""
        first = self.start()
        self.let_work(first, to=self.chance.choice(JOBS[:3]))
        before = dict(self.broker.group)
        self.let_work(first, to=INPUT_END)
        self.attempts, self.net, self.broker.group = [], [], before
        self._two_days()
        position, ended = before[INPUT][0], set(self._outcomes())
        for place in RESULTS:
            self.broker.remove(place)

        last = self.start()
        for _ in range(2000):
            self.now_s += 0.01
            if self.net:
                self._arrive(self.net.pop(0))
            elif last.alive:
                last.step()
        if again := ended & set(self._outcomes()):
            raise Violation(f"jobs {sorted(again)} have ended before, from {position} on")
        if last.alive:
            raise Violation("what is gone was not missed")

    def cancelled_meanwhile(self) -> None:
        """One attempt dies over its work, a job is cancelled, and another one begins."""
        first = self.start()
        self.let_work(first, to=JOBS[1])
        self.attempts.remove(first)
        self.broker.cancels.append(self.chance.choice(JOBS))
        self._alone()
        self._count()

    def _alone(self) -> None:
        """All others stand still; this one must come to the end."""
        self.attempts, self.net = [], []
        owed = set(self.broker.cancels) - set(self._outcomes())
        self.let_work(self.start(), to=INPUT_END)
        for job in owed:
            value = self._outcomes()[job].value or b""
            if not value.endswith(b"C"):
                raise Violation(f"job {job} was cancelled before it ended, and ended as {value!r}")

    def let_work(self, one: Attempt, *, to: int) -> None:
        """One attempt works alone until its position is there. Raises `Violation`."""
        for _ in range(6000):
            self.now_s += 0.01
            if self.net and self.chance.random() < 0.5:
                self._arrive(self.net.pop(0))
            else:
                one.step()
            if not one.alive:
                raise Violation(f"the attempt failed: {self.loud[-1]}")
            if one.chain is not None and one.chain.position >= to:
                return
        raise Violation("the attempt does not come to an end")

    def _outcomes(self) -> dict[int, Row]:
        found: dict[int, Row] = {}
        for place in RESULTS:
            for row in self.broker.rows(place):
                if row.job in found:
                    raise Violation(f"job {row.job} has two outcomes")
                found[row.job] = row
        return found

    def _followed(self) -> Counter[tuple[Partition, int, bytes, bytes | None]]:
        places = [place for place in self.broker.logs if place not in RESULTS]
        return Counter(
            (place, row.job, row.name, row.value)
            for place in places
            for row in self.broker.rows(place)
        )

    def _check_done(self, *, below: int) -> None:
        outcomes, followed = self._outcomes(), self._followed()
        for job in (job for job in JOBS if job < below):
            if job not in outcomes:
                raise Violation(f"snapshot {below} is behind job {job}, which has no outcome")
            for place, row in follows_of(outcomes[job]):
                if not followed[place, job, row.name, row.value]:
                    raise Violation(f"snapshot {below} is behind job {job}, not followed up")

    def _count(self) -> None:
        outcomes = self._outcomes()
        if set(outcomes) != set(JOBS):
            raise Violation(f"outcomes of {sorted(outcomes)}, jobs {JOBS}")
        wanted = Counter(
            (place, row.job, row.name, row.value)
            for outcome in outcomes.values()
            for place, row in follows_of(outcome)
        )
        if self._followed() != wanted:
            raise Violation(f"followed up {self._followed() - wanted}, not {wanted}")
