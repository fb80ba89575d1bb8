"""Consumer groups of the new protocol under faults, from a seed (K9).

Clients obey: they beat, give up what they are told to, and join again when they are refused. Some
speak the classic protocol, eager or cooperative, as in a group that is moving. They
come, go, crash, hang and come back, some as static members; answers are lost; topics grow;
appends fail, stored or not; the coordinator crashes, and another goes on with a prefix of what was
on its way.

Checked always: a partition is told to a member only when no other member that the group still
counts on believes that it has it. Epochs that a member hears never go back. Once faults stop, all
partitions are read, each by one member, as evenly as can be, after `SETTLE_BEATS` heartbeats.
"""

import random
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from tests.sim.seeds import run_seeds

from dovetail.log.groups.assignors import Assignment, Part
from dovetail.log.groups.consumer_types import (
    ConsumerBeat,
    ConsumerHeader,
    ConsumerMember,
    ConsumerPersist,
)
from dovetail.log.groups.mixed_group import MixedGroup
from dovetail.log.groups.types import (
    NO_MEMBER,
    Answer,
    ConsumerAnswer,
    ConsumerLimits,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    InstanceId,
    JoinAnswer,
    JoinRequest,
    MemberId,
    MemberIdentity,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)

SETTINGS = GroupSettings(session_timeout_ms_min=100, consumer=ConsumerLimits(100, 1000))
REBALANCE_MS = 600
STEPS = 250
#: The last change is noticed, what is surplus is given up, and then it is free for the others;
#: those who are dead have to be found out first.
SETTLE_BEATS = 40


class Topics:
    """Topics that grow."""

    def __init__(self) -> None:
        self.version = 0
        self.counts = {"a": 3, "b": 2}

    def facts(self, name: str) -> tuple[str, int] | None:
        return (f"id-{name}", self.counts[name]) if name in self.counts else None

    def names(self) -> Iterable[str]:
        return self.counts

    def grow(self, name: str) -> None:
        self.counts[name] += 1
        self.version += 1


class Client:
    """One consumer; what it has is what it reads."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.member_id = MemberId(name)
        self.instance = None if instance is None else InstanceId(instance)
        self.epoch = 0
        self.heard = 0
        self.has: Assignment = frozenset()
        self.alive = True
        self.hangs_until_ms = 0.0
        #: The request that it waits for; an answer to an older one is for a closed connection.
        self.asked = 0
        #: Whether everything has to be said anew: after a lost answer, and to join.
        self.full = True

    def beat(self) -> ConsumerBeat:
        self.asked += 1
        joining = self.epoch == 0
        # Who asks again without an answer gave up the last one, and says everything anew.
        full = self.full or joining
        self.full = True
        return ConsumerBeat(
            member_id=self.member_id,
            epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            names=("a", "b") if full else None,
            owned=frozenset() if joining else self.has,
        )

    def hear(self, answer: ConsumerAnswer) -> None:
        if answer.error in (GroupError.UNKNOWN_MEMBER, GroupError.FENCED_MEMBER_EPOCH):
            self.epoch, self.has, self.full = 0, frozenset(), True
        elif answer.error is GroupError.FENCED_INSTANCE:
            self.alive, self.has = False, frozenset()
        elif answer.error is GroupError.NONE:
            self.epoch, self.full = answer.epoch, False
            if answer.assignment is not None:
                self.has = answer.assignment
        else:
            self.full = True


class Formats:
    """What classic members say, as text: `a:0 a:1`."""

    def subscription(
        self, metadata: bytes
    ) -> tuple[frozenset[str], frozenset[tuple[str, int]]] | None:
        return frozenset({"a", "b"}), self.assigned(metadata)

    def assigned(self, assignment: bytes) -> frozenset[tuple[str, int]]:
        pairs = (one.split(":") for one in assignment.decode().split())
        return frozenset((topic, int(number)) for topic, number in pairs)

    def assignment(self, parts: Iterable[tuple[str, int]]) -> bytes:
        return " ".join(f"{topic}:{number}" for topic, number in parts).encode()


class ClassicClient(Client):
    """A consumer of the classic protocol; it syncs as soon as it has joined."""

    def __init__(self, name: str, *, eager: bool) -> None:
        super().__init__("", None)
        self.name = name
        self.eager = eager
        self.joins = True

    def act(self, group: MixedGroup, now_ms: float) -> Iterable[Any]:
        """Its next request: it beats, or joins if it has to."""
        who = MemberIdentity(self.member_id)
        if not self.joins:
            error = group.heartbeat(who, Generation(self.epoch), now_ms=now_ms)
            self.joins = error is not GroupError.NONE
            self.forget(error)
            return ()
        self.asked += 1
        if self.eager:
            self.has = frozenset()
        owned = Formats().assignment((t.removeprefix("id-"), n) for t, n in sorted(self.has))
        request = JoinRequest(
            self.member_id,
            "consumer",
            (MemberProtocol("x", owned),),
            1000,
            REBALANCE_MS,
            client_id=self.name,
        )
        return group.join(request, (self, self.asked), now_ms=now_ms)

    def forget(self, error: GroupError) -> None:
        """It was removed, or is behind: it has nothing any more."""
        if error in (GroupError.UNKNOWN_MEMBER, GroupError.ILLEGAL_GENERATION):
            self.has = frozenset()
        if error is GroupError.UNKNOWN_MEMBER:
            self.member_id = NO_MEMBER

    def hear_classic(
        self, answer: JoinAnswer | SyncAnswer, group: MixedGroup, now_ms: float
    ) -> Iterable[Any]:
        if answer.error is not GroupError.NONE:
            self.joins = True
            self.forget(answer.error)
            return ()
        if isinstance(answer, JoinAnswer):
            self.epoch, self.member_id = answer.generation, answer.member_id
            who = MemberIdentity(self.member_id)
            sync = SyncRequest(who, answer.generation)
            return group.sync(sync, (self, self.asked), now_ms=now_ms)
        told = Formats().assigned(answer.assignment)
        parts = frozenset((f"id-{topic}", number) for topic, number in told)
        # A cooperative member that gives something up joins again to say so.
        self.joins = not self.eager and bool(self.has - parts)
        self.has = parts
        return ()


class World:
    """A group, its journal and its clients."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ids = count()
        self.now_ms = 0.0
        self.topics = Topics()
        self.header: ConsumerHeader | None = None
        self.members: dict[MemberId, ConsumerMember] = {}
        self.group = self._made()
        self.writing: ConsumerPersist | None = None
        self.clients: list[Client] = []
        self.problems: list[str] = []
        self.faults = True
        self.names = 0

    def _made(self) -> MixedGroup:
        return MixedGroup(
            GroupId("g"),
            SETTINGS,
            self.topics,
            formats=Formats(),
            new_member_id=lambda prefix: MemberId(f"{prefix}-{next(self.ids)}"),
        )

    def perform(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, ConsumerPersist):
                assert self.writing is None, "two appends at once"
                self.writing = effect
            else:
                self.tell(effect)

    def tell(self, effect: Answer) -> None:
        token, answer = effect.token, effect.answer
        assert isinstance(token, tuple)
        client, asked = token
        if isinstance(client, ClassicClient) and not isinstance(answer, ConsumerAnswer):
            self.tell_classic(client, asked, answer)
            return
        assert isinstance(answer, ConsumerAnswer)
        if answer.error is GroupError.NONE:
            if 0 < answer.epoch < client.heard and client.epoch != 0:
                self.problems.append(f"{client.member_id} heard {answer.epoch}, {client.heard}")
            client.heard = max(client.heard, answer.epoch)
            self.check(client, answer.assignment or frozenset())
        lost = asked != client.asked or (self.faults and self.chance.random() < 0.1)
        if lost or not client.alive or client.hangs_until_ms > self.now_ms:
            client.full = True
        else:
            client.hear(answer)

    def tell_classic(
        self, client: ClassicClient, asked: int, answer: JoinAnswer | SyncAnswer
    ) -> None:
        if isinstance(answer, SyncAnswer) and answer.error is GroupError.NONE:
            told = Formats().assigned(answer.assignment)
            self.check(client, frozenset((f"id-{topic}", number) for topic, number in told))
        lost = asked != client.asked or (self.faults and self.chance.random() < 0.1)
        if lost or not client.alive or client.hangs_until_ms > self.now_ms:
            client.joins = True
        else:
            self.perform(client.hear_classic(answer, self.group, self.now_ms))

    def check(self, told: Client, parts: Assignment) -> None:
        """Nobody whom the group counts on has what another is told."""
        counted = self.group._members
        for other in self.clients:
            if other is told or not other.alive or other.member_id not in counted:
                continue
            both = other.has & parts
            if both and other.epoch != 0:
                self.problems.append(f"{told.member_id} and {other.member_id} have {set(both)}")

    # Faults

    def store(self) -> None:
        effect = self.writing
        if effect is None:
            return
        self.writing = None
        failed = self.faults and self.chance.random() < 0.15
        if not failed or self.chance.random() < 0.5:
            self._append(effect)
        error = GroupError.COORDINATOR_NOT_AVAILABLE if failed else GroupError.NONE
        self.perform(self.group.written(error, now_ms=self.now_ms))

    def _append(self, effect: ConsumerPersist) -> None:
        self.header = effect.header
        for member_id, kept in effect.members.items():
            if kept is None:
                self.members.pop(member_id, None)
            else:
                self.members[member_id] = kept

    def crash(self) -> None:
        """Another coordinator goes on; what was on its way may be stored."""
        if self.writing is not None and self.chance.random() < 0.5:
            self._append(self.writing)
        self.writing = None
        self.group = self._made()
        if self.header is not None:
            self.group.restore(self.header, self.members, now_ms=self.now_ms)
        for client in self.clients:
            client.full = True

    def come(self) -> None:
        self.names += 1
        if self.chance.random() < 0.4:
            eager = self.chance.random() < 0.5
            self.clients.append(ClassicClient(f"c-{self.names}", eager=eager))
            return
        instance = self.chance.choice((None, None, "i-1", "i-2"))
        if any(client.alive and client.instance == instance for client in self.clients):
            instance = None
        self.clients.append(Client(f"m-{self.names}", instance))

    def go(self, client: Client) -> None:
        kind = self.chance.choice(("leave", "away", "crash", "hang"))
        if kind == "hang":
            client.hangs_until_ms = self.now_ms + self.chance.choice((300, 900, 2500))
            return
        if isinstance(client, ClassicClient):
            client.asked += 1
            if kind != "crash":
                client.has = frozenset()
                who = MemberIdentity(client.member_id)
                self.perform(self.group.leave([who], now_ms=self.now_ms)[1])
        elif kind != "crash" and client.epoch > 0:
            epoch = -2 if kind == "away" and client.instance is not None else -1
            beat = ConsumerBeat(
                member_id=client.member_id, epoch=epoch, instance_id=client.instance
            )
            client.has = frozenset()
            self.perform(self.group.beat(beat, (client, 0), now_ms=self.now_ms))
        client.alive, client.has = False, frozenset()

    # Steps

    def beat(self) -> None:
        awake = [c for c in self.clients if c.alive and c.hangs_until_ms <= self.now_ms]
        if awake:
            client = self.chance.choice(awake)
            self.ask(client)

    def ask(self, client: Client) -> None:
        if isinstance(client, ClassicClient):
            self.perform(client.act(self.group, self.now_ms))
            return
        beat = client.beat()
        self.perform(self.group.beat(beat, (client, client.asked), now_ms=self.now_ms))

    def step(self) -> None:
        self.now_ms += self.chance.choice((5, 20, 60))
        self.perform(self.group.tick(now_ms=self.now_ms))
        roll = self.chance.random()
        if roll < 0.04:
            self.come()
        elif roll < 0.07 and self.clients:
            living = [c for c in self.clients if c.alive]
            if living:
                self.go(self.chance.choice(living))
        elif roll < 0.09:
            self.crash()
        elif roll < 0.10:
            self.topics.grow(self.chance.choice(("a", "b")))
        elif roll < 0.45:
            self.store()
        else:
            self.beat()

    def settle(self) -> None:
        self.faults = False
        for _ in range(SETTLE_BEATS):
            for client in self.clients:
                if client.alive:
                    client.hangs_until_ms = 0
                    self.ask(client)
                    while self.writing is not None:
                        self.store()
            self.now_ms += 50
            self.perform(self.group.tick(now_ms=self.now_ms))

    def judge(self) -> None:
        living = [c for c in self.clients if c.alive]
        if not living:
            return
        if self.group.state is not GroupState.STABLE:
            self.problems.append(f"the group is {self.group.state}")
        read: list[Part] = [part for client in living for part in client.has]
        wanted = {(f"id-{t}", n) for t, count in self.topics.counts.items() for n in range(count)}
        if len(read) != len(set(read)) or set(read) != wanted:
            self.problems.append(f"{sorted(read)} are read, not {sorted(wanted)}")
        sizes = [len(client.has) for client in living]
        if max(sizes) - min(sizes) > 1:
            self.problems.append(f"unevenly: {sizes}")


def run_seed(seed: int) -> World:
    world = World(seed)
    for _ in range(2):
        world.come()
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.judge()
    return world


def test_groups_of_the_new_protocol_survive_faults() -> None:
    """K9, R1: see the module."""

    def clean(seed: int) -> None:
        problems = run_seed(seed).problems
        assert not problems, problems[:3]

    run_seeds(clean, least=200)


class GivesTwice(MixedGroup):
    """Planted: a partition is given before the one who has it gave it up."""

    def _reconcile(self, member: Any, owned: Assignment | None, now_ms: float) -> None:
        self._owners.clear()
        super()._reconcile(member, owned, now_ms)


class TellsFirst(MixedGroup):
    """Planted: members hear what is not stored yet."""

    def _drain(self) -> Any:
        effects = list(super()._drain())
        if self._writing is not None:
            waiting, self._writing.waiting = self._writing.waiting, []
            effects = [*waiting, *effects]
        return effects


class ForgetsDoubts(MixedGroup):
    """Planted: what may be stored after a failed append is not written over."""

    def _drain(self) -> Any:
        self._unsure.clear()
        return super()._drain()


@pytest.mark.parametrize("planted", [GivesTwice, TellsFirst, ForgetsDoubts])
def test_planted_bug_is_found(planted: type[MixedGroup], monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, K9: the simulation goes red when the protocol is broken."""
    monkeypatch.setitem(globals(), "MixedGroup", planted)
    assert any(run_seed(seed).problems for seed in range(200))
