"""A world for gatherings: ends of items come in time and late, attempts overlap, sleep and die.

Broker, net and attempts are those of `chain_world`; here an attempt collects the ends of items into
groups (`gathers`) and the chain has a row for each group. Clocks differ, by less than the slack.
What must come out is counted from the log alone: one row for each group, with the ends in it that
the broker stored in time.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.teams.chain_world import RESULTS, Attempt, Violation, World

from dovetail.teams.chains.chain import Chain
from dovetail.teams.chains.rows import OUTCOME, Row
from dovetail.teams.codecs import codec_of
from dovetail.teams.envelope import Item
from dovetail.teams.tasks.gathers import SLACK_MS, End, Group, GroupKey, Groups, payload_of

#: Sprays: base, items, items that never end, when it is over. One base comes twice, as a job that
#: is submitted again after its id was forgotten.
SPRAYS = (
    (b"a", 3, 0, 4_000),
    (b"b", 2, 1, 3_000),
    (b"c", 0, 0, 5_000),
    (b"d", 2, 2, 3_500),
    (b"a", 3, 1, 9_000),
)
_JSON = codec_of("json")


@dataclass(frozen=True)
class Stored:
    """The end of an item, as the log has it."""

    at_ms: int
    item: Item
    value: bytes

    @property
    def counts(self) -> bool:
        return self.at_ms <= self.item.until_ms

    @property
    def key(self) -> GroupKey:
        return self.item.base, self.item.count, self.item.until_ms


class GatherAttempt(Attempt):
    """One attempt at the gathering."""

    #: Planted bugs change these.
    groups_type: type[Groups] = Groups
    holds_members = True
    waits_to_have_read = True

    def __init__(self, world: "GatherWorld", number: int) -> None:
        super().__init__(world, number)
        self.groups = self.groups_type()
        self._read_ms = 0
        self._skew_ms = world.chance.randint(-SLACK_MS // 2 + 1, SLACK_MS // 2 - 1)

    def _work(self, chain: Chain) -> None:
        choices: list[Callable[[], None]] = [
            lambda place=place: self._lane(chain, place) for place in self.lanes
        ]
        choices.append(lambda: self.do(chain.send(now_s=self.world.now_s, now_ms=1)))
        choices.append(lambda: self._snapshot(chain))
        if chain.ready:
            choices += [lambda: self._read_input(chain)] * 2
        self.chance.choice(choices)()
        while self.follow:
            chain.follow(self.follow.pop().job, ())
        while chain.ended:
            for other in self.groups.end(chain.ended.pop()):
                chain.release(other)

    def _read_input(self, chain: Chain) -> None:
        world = self.world
        assert isinstance(world, GatherWorld)
        asked_ms = world.clock_ms + self._skew_ms
        end = len(world.input)
        if self.chance.random() < 0.5:
            end = min(end, self._taken + 1)
        for offset in range(self._taken, end):
            self._take_end(chain, offset, world.input[offset])
        self._taken = max(self._taken, end)
        chain.skip(self._taken)
        if self._taken == len(world.input) or not self.waits_to_have_read:
            self._read_ms = max(self._read_ms, asked_ms)
        for group in self.groups.over(read_ms=self._read_ms):
            self._close(chain, group)

    def _take_end(self, chain: Chain, offset: int, stored: Stored) -> None:
        if not self.groups.counts(stored.item, at_ms=stored.at_ms):
            return
        effects = chain.take(offset)
        complete = self.groups.add(offset, stored.item, End(stored.value))
        if effects:
            self.do(effects)
        elif complete is not None:
            self._close(chain, complete)
        elif not self.holds_members:
            chain.release(offset)

    def _close(self, chain: Chain, group: Group) -> None:
        group.closed = True
        payload = payload_of(group, given=_JSON, wanted=_JSON)
        place = RESULTS[len(group.base) % 2]
        chain.decide(place, Row(group.last, OUTCOME, group.base, payload), ())


class GatherWorld(World):
    """Items end while attempts work; in the end time passes, and one attempt works alone."""

    def __init__(self, seed: int, *, attempt_type: type[Attempt] = GatherAttempt) -> None:
        self.input: list[Stored] = []
        self.clock_ms = 1_000
        self._coming: list[tuple[Item, bytes]] = []
        super().__init__(seed, attempt_type=attempt_type)
        for base, count, never, until_ms in SPRAYS:
            items = [Item(base, number, count, until_ms) for number in range(count)]
            self._coming += [(one, b"%d" % one.number) for one in items[never:]]
            self._coming.append((Item(base, count, count, until_ms), b""))
        self.chance.shuffle(self._coming)

    def _step(self) -> None:
        chance = self.chance.random()
        if chance < 0.05 and self._coming:
            item, value = self._coming.pop()
            self.input.append(Stored(self.clock_ms, item, value))
        elif chance < 0.15:
            self.clock_ms += self.chance.choice((1, 50, 400))
        else:
            super()._step()

    def _alone(self) -> None:
        for item, value in self._coming:
            self.clock_ms += self.chance.choice((1, 900))
            self.input.append(Stored(self.clock_ms, item, value))
        self.clock_ms += max(spray[3] for spray in SPRAYS) + 2 * SLACK_MS
        self.attempts, self.net = [], []
        self.let_work(self.start(), to=len(self.input))

    def _wanted(self, *, below: int | None = None) -> dict[GroupKey, list[Stored]]:
        """The groups of the log, those alone that have an end below an offset."""
        found: dict[GroupKey, list[Stored]] = defaultdict(list)
        touched = set()
        for offset, stored in enumerate(self.input):
            if stored.counts:
                found[stored.key].append(stored)
                if below is None or offset < below:
                    touched.add(stored.key)
        return {key: ends for key, ends in found.items() if key in touched}

    def _made(self) -> dict[bytes, list[bytes | None]]:
        made = defaultdict(list)
        for place in RESULTS:
            for row in self.broker.rows(place):
                made[row.key].append(row.value)
        return made

    def _check_done(self, *, below: int) -> None:
        made = self._made()
        for (base, *_), _ends in self._wanted(below=below).items():
            if not made[base]:
                raise Violation(f"snapshot {below} is behind an end of {base!r}, not gathered")

    def _count(self) -> None:
        wanted = defaultdict(list)
        for (base, count, until_ms), ends in self._wanted().items():
            group = Group(base, count, until_ms)
            found = [one for one in ends if not one.item.opens]
            group.ends = {one.item.number: End(one.value) for one in found}
            wanted[base].append(payload_of(group, given=_JSON, wanted=_JSON))
        made = {base: sorted(rows) for base, rows in self._made().items()}
        if made != {base: sorted(rows) for base, rows in wanted.items()}:
            raise Violation(f"gathered {dict(made)}, not {dict(wanted)}")
