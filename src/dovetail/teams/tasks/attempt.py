"""An attempt at a partition: its chain, the chain's lanes, and snapshots.

What happens to the jobs of the partition is up to the two kinds of attempts: a team runs its
function (`serving`), a gathering waits until the items of a job are complete (`gathering`).

Nothing here blocks: `filenos` and `due_s` say what to wait for, and `step` continues. Only the
beginning asks the broker and waits for its answers.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dovetail.errors import DovetailError, ProducerFenced
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition
from dovetail.logging import get_logger
from dovetail.teams.chains.chain import Chain, ChainBroken, Effect, Follow, Placed
from dovetail.teams.chains.chain_id import Copy, group_of, producer_of
from dovetail.teams.chains.lane import Lane, clock_s
from dovetail.teams.chains.rows import Row
from dovetail.teams.chains.snapshot import Entry, Snapshot, created
from dovetail.teams.graph import Stage
from dovetail.teams.tasks.commits import Commits
from dovetail.teams.tasks.tail import Tail

#: Outcomes wait so long for others before they are written.
GATHER_S = 0.001
#: So long while there are so many jobs in hand: each of them waits longer than that for its turn.
_GATHER_MANY_S, _MANY = 0.010, 1_000
#: A snapshot is committed so often while there is work, and soon after the last job has ended.
_SNAPSHOT_S, _SNAPSHOT_IDLE_S = 1.0, 0.1
#: Committed positions expire at the broker; they are renewed before.
_RENEW_S = 3_600.0

_log = get_logger("teams")


@dataclass(frozen=True, slots=True)
class Share:
    """One partition of a team, or of its gathering, for a task to serve."""

    stage: Stage
    #: The team's chain, and the number of results partitions that it was created with.
    chain: str
    results: int
    number: int
    #: How many functions may run at once in this partition, if none takes long.
    size: int
    #: A snapshot that the group held once, for when it is empty; None: it never held one.
    copy: Copy | None
    delays: bool
    term: int
    #: It is of the gathering behind the team.
    gathers: bool = False
    #: The term is of the team's own election.
    own: bool = False

    @property
    def input(self) -> Partition:
        if self.gathers:
            assert self.stage.gather is not None
            return self.stage.gather.topic, self.number
        return self.stage.topics.input, self.number

    @property
    def results_topic(self) -> str:
        if self.gathers:
            assert self.stage.gather is not None
            return self.stage.gather.target.input_topic
        return self.stage.topics.results

    @property
    def group(self) -> str:
        return group_of(self.chain, self.number)


class Attempt(ABC):
    """One attempt at a partition, from the last snapshot on."""

    def __init__(self, share: Share, client: KafkaClient, *, committing: KafkaClient) -> None:
        """`committing` is for snapshots, and waits little: the next one will do. Raises
        `ChainBroken`, `ProducerFenced`, and what the broker refuses."""
        self._share, self._client, self._committing = share, client, committing
        self._stage = share.stage
        self._input = Tail(client, share.input)
        self._lanes: dict[Partition, Lane] = {}
        self._commits = Commits(committing, share.group)
        self._send_at_s: float | None = None
        self._committed: Snapshot | None = None
        self._committed_at_s = self._moved_at_s = clock_s()
        self._chain = self._begin()

    @abstractmethod
    def outputs(self) -> Sequence[Partition]:
        """The output partitions beside those of the results, as far as they are known."""

    @abstractmethod
    def work(self, now_s: float, ready: set[int]) -> None:
        """Takes what has come, and gives the chain what has ended."""

    @abstractmethod
    def follow_stored(self, outcome: Row) -> None:
        """Makes what follows from an outcome that another attempt stored."""

    @abstractmethod
    def forget(self, offsets: Collection[int]) -> None:
        """Jobs have ended, with all that follows from them."""

    # --- beginning -------------------------------------------------------------------------------

    def _begin(self) -> Chain:
        """Finds the last snapshot, or creates the chain."""
        share = self._share
        results = [(share.results_topic, number) for number in range(share.results)]
        snapshot = self._adopted([*results, *self.outputs()])
        led = snapshot.led_by(share.term, own=share.own)
        if 0 < share.term < led.term:
            raise ProducerFenced(
                f"the master of term {share.term} begins, but one of term {snapshot.term} has "
                "committed"
            )

        self._committed = snapshot
        self._input.position = snapshot.position
        chain = Chain(
            led,
            producer_id=producer_of(share.chain, share.number),
            results=results,
        )
        self._lanes = {place: Lane(self._client, chain, place) for place in snapshot.entries}
        self._starting = chain.begin(now_s=clock_s())
        return chain

    def _adopted(self, places: Iterable[Partition]) -> Snapshot:
        """The snapshot, with entries for these places; missing ones are committed first.

        The ends are asked for before the group: see `snapshot.created`.
        """
        share, client = self._share, self._client
        places = list(places)
        while True:
            ends = client.offsets(dict.fromkeys(places, LATEST))
            stored = client.committed(share.group)
            snapshot = Snapshot.of(share.input, stored)
            if snapshot is not None and not set(places) - set(snapshot.entries):
                return snapshot
            if snapshot is None and share.copy is not None:
                self._recover(share.copy, places)
                continue
            if snapshot is None:
                position = client.offsets({share.input: EARLIEST})[share.input]
            else:
                position = snapshot.position
                ends = {k: end for k, end in ends.items() if k not in snapshot.entries}
            new = created(
                share.input, position, ends, at_ms=now_ms(), term=share.term, own=share.own
            )
            positions, texts = new.positions(), new.texts()
            if snapshot is not None:
                # What others have committed meanwhile stays.
                del positions[share.input]
            client.commit(share.group, positions, metadata=texts)

    def _recover(self, copy: Copy, places: Sequence[Partition]) -> None:
        """The group has lost its positions: an older snapshot serves as well, and only makes this
        attempt read more. What it does not know is read from its beginning. Raises `ChainBroken`.
        """
        share, client = self._share, self._client
        known = Snapshot.of(share.input, copy)
        if known is None:
            raise ChainBroken(
                f"the positions of {share.input[0]}-{share.number} in group {share.group!r} "
                "are gone, and with them what is done. Start the team with a new checkpoint if "
                "its jobs may be done again"
            )
        _log.warning("positions are gone; goes on from the copy", group=share.group)
        unknown = [place for place in places if place not in known.entries]
        begin = client.offsets(dict.fromkeys(unknown, EARLIEST))
        new = created(share.input, known.position, begin, at_ms=now_ms(), term=known.term)
        positions = new.positions() | known.positions()
        client.commit(share.group, positions, metadata=new.texts() | known.texts())

    def know_places(self, follows: Sequence[Placed]) -> None:
        """Output partitions that are new to the chain get an entry before they are used."""
        new = follows and {place for place, _ in follows if not self._chain.knows(place)}
        if not new:
            return
        snapshot = self._adopted(new)
        for place in new:
            self._add_place(place, snapshot.entries[place])

    def _add_place(self, place: Partition, entry: Entry) -> None:
        self._lanes[place] = Lane(self._client, self._chain, place)
        self.do(self._chain.add(place, entry, now_s=clock_s()))

    # --- waiting ---------------------------------------------------------------------------------

    def filenos(self) -> list[int]:
        """What to wait for."""
        lanes = [lane.fileno() for lane in self._lanes.values()]
        others = (self._input.fileno(), self._commits.fileno())
        return [one for one in (*lanes, *others) if one >= 0]

    def due_s(self, now_s: float) -> float:
        """When to call `step` at the latest, on the clock that counts suspension."""
        times = [now_s + _SNAPSHOT_S]
        if not self._commits.busy:
            times.append(self._committed_at_s + (_RENEW_S if self.is_committed else _SNAPSHOT_S))
        times += [due for lane in self._lanes.values() if (due := lane.due_s()) is not None]
        if self._send_at_s is not None:
            times.append(self._send_at_s)
        if self._input.fileno() < 0 and self.wants_more:
            times.append(self._input.retry_s)
        if not self.is_committed and not self._chain.in_hand and not self._commits.busy:
            times.append(max(self._moved_at_s, self._committed_at_s) + _SNAPSHOT_IDLE_S)
        return min(times)

    @property
    def wants_more(self) -> bool:
        """Whether the input is read on."""
        return self._chain.ready

    def step(self, now_s: float, ready: set[int]) -> None:
        """Goes on with everything for which something has come. Raises what ends the attempt."""
        effects: list[Effect] = self._starting
        self._starting = []
        for lane in self._lanes.values():
            effects += lane.step(now_s, ready=lane.fileno() in ready)
        self.do(effects)

        stored = self._commits.take(now_s, ready)
        if stored is not None:
            self.on_committed(stored)
        self.work(now_s, ready)
        self._send(now_s)
        self._forget_ended(now_s)
        self._snapshot(now_s)

    def close(self) -> None:
        """Commits how far it came, and leaves."""
        if self._chain.ready:
            snapshot = self._chain.snapshot(now_ms=now_ms())
            positions, texts = snapshot.positions(), snapshot.texts(self.note())
            with suppress(DovetailError):
                self._committing.commit(self._share.group, positions, metadata=texts)
        self._commits.close()
        self._input.close()
        for lane in self._lanes.values():
            lane.close()

    # --- rows ------------------------------------------------------------------------------------

    def do(self, effects: Iterable[Effect]) -> None:
        """Does what the chain asks for."""
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Follow):
                self.follow_stored(effect.outcome)
            else:
                waiting.extend(self._lanes[effect.place].do(effect))

    def _send(self, now_s: float) -> None:
        if not self._chain.has_waiting:
            self._send_at_s = None
            return
        if self._send_at_s is None:
            many = self._chain.in_hand >= _MANY
            self._send_at_s = now_s + (_GATHER_MANY_S if many else GATHER_S)
        elif now_s >= self._send_at_s:
            self._send_at_s = None
            self.do(self._chain.send(now_s=now_s, now_ms=now_ms()))

    def _forget_ended(self, now_s: float) -> None:
        while self._chain.ended:
            ended, self._chain.ended = self._chain.ended, []
            self.forget(ended)
            self._moved_at_s = now_s

    # --- snapshots -------------------------------------------------------------------------------

    @property
    def is_committed(self) -> bool:
        """Whether the last snapshot says all that there is to say."""
        return self._committed is not None and self._committed.position == self._chain.position

    def note(self) -> str:
        """What is told to the driver beside a snapshot."""
        return ""

    def _snapshot(self, now_s: float) -> None:
        quiet_s = now_s - max(self._moved_at_s, self._committed_at_s)
        idle = not self._chain.in_hand and quiet_s > _SNAPSHOT_IDLE_S
        due_s = _RENEW_S if self.is_committed else _SNAPSHOT_S
        if now_s - self._committed_at_s < due_s and not (idle and not self.is_committed):
            return
        if self._commits.busy:
            return
        self._committed_at_s = now_s
        if self._chain.ready:
            # If it does not get through, the next one will.
            self._commits.send(self._chain.snapshot(now_ms=now_ms()), self.note(), now_s=now_s)

    def on_committed(self, snapshot: Snapshot) -> None:
        """A snapshot is stored."""
        self._committed = snapshot


def now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000
