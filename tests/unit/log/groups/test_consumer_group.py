"""Groups of the new protocol: heartbeats, epochs, static members, patterns, assignors, storing."""

import asyncio
import random
import re
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.log.groups.memory_journal import MemoryGroupJournal

from dovetail.clock import SystemClock
from dovetail.errors import InvalidInput
from dovetail.log.groups.assignors import ASSIGNORS, Subscriber
from dovetail.log.groups.consumer_types import ConsumerBeat
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.groups.topic_patterns import TopicPattern
from dovetail.log.groups.types import (
    CommittedOffset,
    ConsumerAnswer,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    InstanceId,
    JoinRequest,
    MemberId,
    MemberIdentity,
    MemberProtocol,
    OffsetCommit,
    PartitionKey,
    SyncRequest,
)

GROUP = GroupId("g")


class FailingJournal(MemoryGroupJournal):
    """Fails once when it is told to, and has stored it all the same."""

    fails = False

    async def append(self, records: Sequence[JournalRecord]) -> None:
        await super().append(records)
        failed, self.fails = self.fails, False
        if failed:
            raise OSError("the answer was lost")


class Topics:
    """Two topics, one of them with three partitions."""

    version = 1

    def facts(self, name: str) -> tuple[str, int] | None:
        return {"a": ("id-a", 3), "b": ("id-b", 1)}.get(name)

    def names(self) -> list[str]:
        return ["a", "b", "other"]


def coordinator(journal: MemoryGroupJournal | None = None) -> GroupCoordinator:
    made = GroupCoordinator(journal or MemoryGroupJournal(), SystemClock(), topics=Topics())
    made._loaded = True
    return made


def beat(member: str, epoch: int = 0, **more: Any) -> ConsumerBeat:
    if epoch == 0:
        more = {"names": ("a", "b"), "rebalance_timeout_ms": 5000, "owned": frozenset(), **more}
    return ConsumerBeat(member_id=MemberId(member), epoch=epoch, **more)


async def told(
    serving: GroupCoordinator, member: str, epoch: int = 0, **more: Any
) -> ConsumerAnswer:
    return await serving.beat(GROUP, beat(member, epoch, **more))


async def test_a_member_joins_gives_up_and_takes_over() -> None:
    """K9: the first has all; the second gets its share only after the first gave it up."""
    serving = coordinator()
    first = await told(serving, "one")
    assert first.assignment is not None and len(first.assignment) == 4
    assert (await told(serving, "one", first.epoch)).assignment is None

    second = await told(serving, "two")
    assert second.assignment == frozenset()
    less = await told(serving, "one", first.epoch, owned=first.assignment)
    assert less.assignment is not None and len(less.assignment) == 2
    assert less.epoch == first.epoch
    assert (await told(serving, "two", second.epoch)).assignment is None

    done = await told(serving, "one", less.epoch, owned=less.assignment)
    assert done.epoch == second.epoch
    given_up = await told(serving, "two", second.epoch)
    assert given_up.assignment == first.assignment - less.assignment
    found = serving.described(GROUP)
    assert found is not None and found.state is GroupState.STABLE


async def test_epochs_fence_except_for_a_lost_answer() -> None:
    """K9: the epoch before is taken once more if nothing is claimed that was given up."""
    serving = coordinator()
    first = await told(serving, "one")
    await told(serving, "two")
    less = await told(serving, "one", first.epoch, owned=first.assignment)
    now = await told(serving, "one", first.epoch, owned=less.assignment)
    again = await told(serving, "one", first.epoch, owned=less.assignment)
    assert (again.epoch, again.assignment) == (now.epoch, now.assignment)
    for epoch, owned in (
        (first.epoch, first.assignment),
        (first.epoch, None),
        (now.epoch + 1, None),
        (2**31 - 1, None),
    ):
        answer = await told(serving, "one", epoch, owned=owned)
        assert answer.error is GroupError.FENCED_MEMBER_EPOCH
    assert (await told(serving, "nobody", 3)).error is GroupError.UNKNOWN_MEMBER


async def test_commits_are_checked_by_epoch() -> None:
    """K9: a member that is behind, or nobody, does not move a position of a group with members."""
    serving = coordinator()
    first = await told(serving, "one")
    key = PartitionKey("a", 0)

    async def commit(member: str, epoch: int) -> GroupError:
        who = MemberIdentity(MemberId(member))
        found = await serving.commit(GROUP, who, Generation(epoch), {key: OffsetCommit(5)})
        return found[key]

    assert await commit("one", first.epoch) is GroupError.NONE
    assert await commit("one", first.epoch - 1) is GroupError.STALE_MEMBER_EPOCH
    assert await commit("two", first.epoch) is GroupError.UNKNOWN_MEMBER
    assert await commit("", -1) is GroupError.UNKNOWN_MEMBER
    who = MemberIdentity(MemberId("one"))
    assert serving.fetch_check(GROUP, who, first.epoch + 1) is GroupError.STALE_MEMBER_EPOCH
    assert serving.fetch_check(GROUP, who, first.epoch) is GroupError.NONE
    await told(serving, "one", -1)
    assert await commit("", -1) is GroupError.NONE


async def test_a_static_member_comes_back_to_what_it_had() -> None:
    """K9: away for a moment, back under another id; nobody else may take its place."""
    serving = coordinator()
    instance = InstanceId("i")
    first = await told(serving, "one", instance_id=instance)
    await told(serving, "two")
    taken = await told(serving, "thief", instance_id=instance)
    assert taken.error is GroupError.UNRELEASED_INSTANCE

    away = await told(serving, "one", -2, instance_id=instance)
    assert (away.error, away.epoch) == (GroupError.NONE, -2)
    back = await told(serving, "one again", instance_id=instance)
    assert back.assignment == first.assignment or len(back.assignment or ()) == 2
    old = await told(serving, "one", first.epoch, instance_id=instance)
    assert old.error is GroupError.FENCED_INSTANCE


async def test_a_group_goes_on_after_its_coordinator() -> None:
    """K9: what the members heard is in the journal, of both kinds of groups."""
    journal = MemoryGroupJournal()
    serving = coordinator(journal)
    first = await told(serving, "one")
    await told(serving, "two")
    less = await told(serving, "one", first.epoch, owned=first.assignment)

    following = GroupCoordinator(journal, SystemClock(), topics=Topics())
    await following.load(journal.replay())
    found = following.described(GROUP)
    assert found is not None and found.header.epoch == 2
    done = await told(following, "one", less.epoch, owned=less.assignment)
    assert done.epoch == 2
    assert len((await told(following, "two", 2)).assignment or ()) == 2

    # Written anew, as a journal is that has grown, it says the same.
    short = MemoryGroupJournal()
    await short.append(following.snapshot())
    third = GroupCoordinator(short, SystemClock(), topics=Topics())
    await third.load(short.replay())
    assert third.described(GROUP) == following.described(GROUP)


async def test_an_empty_group_changes_its_protocol() -> None:
    """K9: positions and numbers go on; with members of one kind the other is refused."""
    journal = MemoryGroupJournal()
    serving = coordinator(journal)
    first = await told(serving, "one")
    classic = JoinRequest(MemberId(""), "consumer", (MemberProtocol("range", b""),), 10_000, 10_000)
    refused = await serving.join(GROUP, classic)
    assert refused.error is GroupError.INCONSISTENT_PROTOCOL
    who = MemberIdentity(MemberId("one"))
    key = PartitionKey("a", 1)
    await serving.commit(GROUP, who, Generation(first.epoch), {key: OffsetCommit(8)})
    await told(serving, "one", -1)

    id_given = await serving.join(GROUP, classic)
    assert id_given.error is GroupError.MEMBER_ID_REQUIRED
    joined = JoinRequest(
        id_given.member_id, "consumer", (MemberProtocol("range", b""),), 10_000, 10_000
    )
    joining = asyncio.create_task(serving.join(GROUP, joined))
    await asyncio.sleep(0)
    assert (await told(serving, "one")).error is GroupError.COORDINATOR_NOT_AVAILABLE
    for _ in range(100):
        serving.tick()
        if joining.done():
            break
        await asyncio.sleep(0.01)
    answer = await joining
    assert answer.generation > first.epoch
    positions = (await serving.fetch(GROUP)).offsets
    assert isinstance(positions[key], CommittedOffset) and positions[key].offset == 8

    following = GroupCoordinator(journal, SystemClock(), topics=Topics())
    await following.load(journal.replay())
    assert following.described(GROUP) is None
    assert [group.kind for group in following.groups()] == ["classic"]


async def test_what_cannot_be_stored_did_not_happen() -> None:
    """K9: the member is told to try again, and the group is what it was."""
    journal = FailingJournal()
    serving = coordinator(journal)
    first = await told(serving, "one")
    journal.fails = True
    assert (await told(serving, "two")).error is GroupError.COORDINATOR_NOT_AVAILABLE
    found = serving.described(GROUP)
    assert found is not None and [m.member_id for m in found.members] == ["one"]
    assert (await told(serving, "one", first.epoch)).error is GroupError.NONE
    assert (await told(serving, "two")).error is GroupError.NONE


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"assignor": "mine"}, GroupError.UNSUPPORTED_ASSIGNOR),
        ({"pattern": "(", "names": None}, GroupError.INVALID_PATTERN),
        ({"pattern": r"(a)\1", "names": None}, GroupError.INVALID_PATTERN),
        ({"pattern": "a" * 2000, "names": None}, GroupError.INVALID_PATTERN),
    ],
)
async def test_odd_requests_change_nothing(more: dict[str, Any], error: GroupError) -> None:
    """K9: an unknown assignor, a pattern that is none, or that could keep a broker busy."""
    serving = coordinator()
    assert (await told(serving, "one", **more)).error is error
    found = serving.described(GROUP)
    assert found is None or not found.members


async def test_a_pattern_means_the_topics_that_match() -> None:
    """K9: those that are there, without what only begins like it."""
    serving = coordinator()
    answer = await told(serving, "one", names=None, pattern="[ab]")
    assert answer.assignment == {("id-a", 0), ("id-a", 1), ("id-a", 2), ("id-b", 0)}


async def test_a_pattern_is_matched_once_while_topics_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K9, R3: every member that comes would have those of all others matched with all topics."""
    matched: list[object] = []
    among = TopicPattern.among

    def counted(pattern: TopicPattern, names: Iterable[str]) -> frozenset[str]:
        matched.append(pattern)
        return among(pattern, names)

    monkeypatch.setattr(TopicPattern, "among", counted)
    serving = coordinator()
    for at in range(5):
        await told(serving, f"member {at}", names=None, pattern=f"[ab]{{1,{at + 1}}}")
    assert len(matched) == len(set(map(id, matched))) == 5
    monkeypatch.setattr(Topics, "version", 2)
    await told(serving, "one more", names=None, pattern="[ab]{1,1}")
    assert len(matched) == 10


@given(st.from_regex(r"[ab.]{0,6}", fullmatch=True), st.text("ab.", max_size=6))
def test_patterns_match_as_pythons_do(pattern: str, name: str) -> None:
    """K9: on what both know."""
    for made in (pattern, f"({pattern})*", f"{pattern}|b+", f"^(?:{pattern}){{1,3}}$"):
        assert TopicPattern(made).matches(name) == bool(re.fullmatch(made, name))


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("(?i)ab[^c]", ["aBd", "AB1"], ["ABC", "abc"]),
        ("(?i)[a-c]+", ["aBC"], ["d"]),
        ("(?is).x", ["1X"], ["x"]),
        (r"\Qa.b\E.", ["a.bc"], ["axbc"]),
        (r"\Qa*", ["a*"], ["aa"]),
        (r"\\Qx", [r"\Qx"], ["x"]),
        ("a[[:digit:]_]+", ["a1_2"], ["a]", "ad", "a:"]),
        ("[^[:alnum:]]", [".", "-"], ["a", "Z", "0"]),
        ("[]a]+", ["]a"], ["b"]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("[[a]+", ["[a"], ["]"]),
        (r"[\]a]+", ["]a"], ["\\"]),
    ],
)
def test_what_re2_writes_otherwise(pattern: str, fits: list[str], fails: list[str]) -> None:
    """K9: flags, quoted text and classes by name; Kafka takes RE2's expressions."""
    made = TopicPattern(pattern)
    assert [name for name in (*fits, *fails) if made.matches(name)] == fits


def test_no_pattern_keeps_a_broker_busy() -> None:
    """K9, R3: what keeps Python's engine busy takes one pass; the rest is refused."""
    assert not TopicPattern("(a+)+b").matches("a" * 249)
    assert not TopicPattern("(a|aa)*$").matches("a" * 248 + "c")
    refused = ("a{1,100000}", "(((a{50}){50}){50})", "(" * 500 + ")" * 500, "(?=a)", "(?x)a")
    for pattern in (*refused, "(?u)(?a)a", "(?i:a)", "[[:nonesuch:]]", r"\pL"):
        with pytest.raises(InvalidInput):
            TopicPattern(pattern)


@pytest.mark.parametrize(
    "nothing", ["(?:){4294967294}", "(?:a{0}){4000000000}", "(?:(?:){999}){999}"]
)
def test_nothing_many_times_is_nothing(nothing: str) -> None:
    """K9, R3: a pattern that repeats nothing four billion times takes no longer than once."""
    assert TopicPattern(f"a{nothing}b").matches("ab")


def test_what_a_pattern_remembers_is_bounded() -> None:
    """K9, R3: names that never take the same way cost time, and no memory after it."""
    rng = random.Random(7)
    names = ["".join(rng.choices("ab", k=249)) for _ in range(3)]
    pattern = TopicPattern(".*a" + "." * 100 + ".*" * 150)
    tracemalloc.start()
    try:
        assert pattern.among(names) == frozenset(names)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    assert left < 100_000


@given(
    st.dictionaries(
        st.sampled_from([f"m{n}" for n in range(6)]),
        st.frozensets(st.sampled_from("abc"), min_size=1),
        min_size=1,
    ),
    st.fixed_dictionaries({topic: st.integers(0, 9) for topic in "abc"}),
    st.sampled_from(sorted(ASSIGNORS)),
)
def test_every_partition_has_one_reader(
    subscribed: dict[str, frozenset[str]], counts: dict[str, int], name: str
) -> None:
    """K9: one that is subscribed to it; asked again with what came out, uniform changes nothing."""
    members = {one: Subscriber(one, topics) for one, topics in subscribed.items()}
    given_out = ASSIGNORS[name](members, counts)
    read = {topic for topics in subscribed.values() for topic in topics}
    parts = [part for assignment in given_out.values() for part in assignment]
    assert sorted(parts) == sorted((t, n) for t in read for n in range(counts[t]))
    for one, assignment in given_out.items():
        assert {topic for topic, _ in assignment} <= subscribed[one]
    if name != "uniform":
        return

    again = {one: Subscriber(one, t, given_out[one]) for one, t in subscribed.items()}
    assert ASSIGNORS[name](again, counts) == given_out
    if len(set(subscribed.values())) == 1:
        sizes = [len(assignment) for assignment in given_out.values()]
        assert max(sizes) - min(sizes) <= 1


class Formats:
    """Topics and partitions as text: `a b|a:0 a:1`."""

    def subscription(
        self, metadata: bytes
    ) -> tuple[frozenset[str], frozenset[tuple[str, int]]] | None:
        topics, bar, owned = metadata.decode().partition("|")
        return (frozenset(topics.split()), self.assigned(owned.encode())) if bar else None

    def assigned(self, assignment: bytes) -> frozenset[tuple[str, int]]:
        pairs = (one.split(":") for one in assignment.decode().split())
        return frozenset((topic, int(number)) for topic, number in pairs)

    def assignment(self, parts: Any) -> bytes:
        return " ".join(f"{topic}:{number}" for topic, number in parts).encode()


class ClassicMember:
    """A member of the classic protocol, as far as a test drives it."""

    def __init__(self, serving: GroupCoordinator, member_id: str, generation: int) -> None:
        self.serving = serving
        self.who = MemberIdentity(MemberId(member_id))
        self.generation = Generation(generation)
        self.has: frozenset[tuple[str, int]] = frozenset()

    async def join(self, *, eager: bool) -> None:
        owned = b"" if eager else Formats().assignment(sorted(self.has))
        protocols = (MemberProtocol("range", b"a b|" + owned),)
        request = JoinRequest(self.who.member_id, "consumer", protocols, 10_000, 10_000)
        joined = await self.serving.join(GROUP, request)
        assert (joined.error, joined.leader) == (GroupError.NONE, "")
        self.generation = joined.generation
        synced = await self.serving.sync(GROUP, SyncRequest(self.who, self.generation))
        self.has = Formats().assigned(synced.assignment)

    async def beat(self) -> GroupError:
        return await self.serving.heartbeat(GROUP, self.who, self.generation)


async def classic_group(journal: MemoryGroupJournal) -> tuple[GroupCoordinator, ClassicMember]:
    """A stable classic group of one member that has everything."""
    serving = GroupCoordinator(
        journal,
        SystemClock(),
        GroupSettings(initial_rebalance_delay_ms=0),
        topics=Topics(),
        formats=Formats(),
    )
    serving._loaded = True
    request = JoinRequest(
        MemberId(""),
        "consumer",
        (MemberProtocol("range", b"a b|"),),
        10_000,
        10_000,
        member_id_required=False,
    )
    joining = asyncio.create_task(serving.join(GROUP, request))
    while not joining.done():
        await asyncio.sleep(0)
        serving.tick()
    joined = await joining
    everything = b"a:0 a:1 a:2 b:0"
    member = ClassicMember(serving, joined.member_id, joined.generation)
    assignments = ((joined.member_id, everything),)
    synced = await serving.sync(GROUP, SyncRequest(member.who, joined.generation, assignments))
    member.has = Formats().assigned(synced.assignment)
    assert len(member.has) == 4
    return serving, member


@pytest.mark.parametrize("eager", [True, False])
async def test_a_live_classic_group_moves(eager: bool) -> None:
    """K9: the new member gets nothing before the old one gave it up; the old one hears of it by
    its heartbeat and goes on under its id; a crash in between changes nothing."""
    journal = MemoryGroupJournal()
    serving, old = await classic_group(journal)
    new = await told(serving, "new")
    assert (new.error, new.assignment) == (GroupError.NONE, frozenset())
    assert new.epoch > old.generation
    key = PartitionKey("a", 0)
    committed = await serving.commit(GROUP, old.who, old.generation, {key: OffsetCommit(4)})
    assert committed[key] is GroupError.NONE

    following = GroupCoordinator(journal, SystemClock(), topics=Topics(), formats=Formats())
    await following.load(journal.replay())
    old.serving = following
    assert await old.beat() is GroupError.REBALANCE_IN_PROGRESS
    await old.join(eager=eager)
    while await old.beat() is GroupError.REBALANCE_IN_PROGRESS:
        await old.join(eager=eager)
    assert len(old.has) == 2
    share = await told(following, "new", new.epoch)
    assert len(share.assignment or ()) == 2
    late = await following.commit(GROUP, old.who, Generation(1), {key: OffsetCommit(5)})
    assert late[key] is GroupError.ILLEGAL_GENERATION

    await told(following, "new", -1)
    assert await old.beat() is GroupError.REBALANCE_IN_PROGRESS
    await old.join(eager=eager)
    assert len(old.has) == 4
    outcomes = await following.leave(GROUP, [old.who])
    assert outcomes[0].error is GroupError.NONE
    assert [group.state for group in following.groups()] == [GroupState.EMPTY]


async def test_who_is_no_consumer_is_left_alone() -> None:
    """K9: a group of another protocol type does not become one of consumers, and goes on."""
    serving, old = await classic_group(MemoryGroupJournal())
    serving._entries[GROUP].group.protocol_type = "connect"  # type: ignore[misc]
    assert (await told(serving, "new")).error is GroupError.GROUP_ID_NOT_FOUND
    assert await old.beat() is GroupError.NONE
    assert (await told(serving, "new", 5)).error is GroupError.UNKNOWN_MEMBER
