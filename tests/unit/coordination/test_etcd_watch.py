"""Watches on etcd: gathering of revisions, lost connections, compaction, slow readers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.etcd_server import EtcdCluster, Gate, running_cluster
from tests.unit.coordination.driving import DEADLINE_S, Events, next_of, put, take

from dovetail.coordination import Delete, Put, Revision, WatchEvent
from dovetail.coordination._etcd_members import Member
from dovetail.coordination._etcd_watch import BUFFER_BYTES_MAX, Gathering, Watch
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import CoordinationDown, WatchGap


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what has no signal of its own, within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def opened(
    endpoint: str, *, namespace: str = "/watch/", silence_ms: int = 1000
) -> AsyncIterator[EtcdCoordinator]:
    settings = EtcdSettings(
        (endpoint,), namespace=namespace, watch_silence_ms=silence_ms, attempt_timeout_ms=1000
    )
    async with await EtcdCoordinator.open(settings) as coordinator:
        yield coordinator


def event(revision: int, key: str = "k") -> WatchEvent:
    return WatchEvent(key, b"", Revision(revision))


@given(
    counts=st.lists(st.integers(1, 4), max_size=12),
    cuts=st.sets(st.integers(0, 48)),
    ends=st.sets(st.integers(0, 12)),
)
def test_revisions_are_whole_however_they_are_cut(
    counts: list[int], cuts: set[int], ends: set[int]
) -> None:
    """L9: fragments end anywhere, messages between revisions; each revision comes out whole."""
    revisions = [
        tuple(event(10 + number, f"k{each}") for each in range(count))
        for number, count in enumerate(counts)
    ]
    gathering = Gathering("", after=Revision(9))
    told: list[Events] = []
    fragment: list[WatchEvent] = []
    sent = 0
    for number, revision in enumerate(revisions):
        for each in revision:
            fragment.append(each)
            sent += 1
            if sent in cuts:
                told += gathering.add(fragment, more=True)
                fragment = []
        if number in ends or revision is revisions[-1]:
            told += gathering.add(fragment, more=False)
            fragment = []
            assert told == revisions[: number + 1]
            assert gathering.position == 10 + number
    assert told == revisions


def test_a_part_of_a_revision_is_forgotten_with_its_stream() -> None:
    """L9: a revision that broke off is sent again from its begin and told once."""
    gathering = Gathering("", after=Revision(4))
    assert gathering.add([event(5), event(6, "a")], more=True) == [(event(5),)]
    assert gathering.position == 5
    gathering.progress(Revision(6))
    assert gathering.position == 5
    gathering.begin()
    whole = gathering.add([event(6, "a"), event(6, "b")], more=False)
    assert whole == [(event(6, "a"), event(6, "b"))]
    gathering.progress(Revision(9))
    gathering.progress(Revision(8))
    assert gathering.position == 9


@pytest.mark.parametrize("revisions", [[5], [4], [7, 6]])
def test_broken_order_is_a_gap(revisions: list[int]) -> None:
    """L9: what comes again, or late, ends the watch instead of being dropped in silence."""
    gathering = Gathering("", after=Revision(4))
    gathering.add([event(5)], more=False)
    with pytest.raises(WatchGap):
        gathering.add([event(revision) for revision in revisions], more=False)


async def test_a_cut_connection_leaves_no_gap_and_no_duplicate(etcd: EtcdCluster) -> None:
    """L9: what is written while a watch is cut off, again and again, comes once and in order."""
    async with (
        Gate(etcd.endpoints[0]) as gate,
        opened(gate.endpoint) as behind,
        opened(etcd.endpoints[0]) as direct,
    ):
        written = [await put(direct, "c/0", b"0")]
        async with behind.watch("c/", after=Revision(written[0] - 1)) as events:
            taken = [await next_of(events)]
            for number in range(1, 6):
                gate.shut()
                for each in range(3):
                    outcome = await direct.transact([Put(f"c/{each}", b""), Put("c/x", b"")])
                    written.append(outcome.revision)
                gate.reopen()
                if number % 2:
                    taken += await take(events, until=written[-1])
            written.append(await put(direct, "c/end"))
            taken += await take(events, until=written[-1])
        assert [revision[0].revision for revision in taken] == written
        assert all(len(revision) == 2 for revision in taken[1:-1])


async def test_compaction_while_a_watch_is_cut_off_is_a_gap(etcd: EtcdCluster) -> None:
    """L9: a watch that missed what is compacted now says so; what it had is told first."""
    async with (
        Gate(etcd.endpoints[0]) as gate,
        opened(gate.endpoint) as behind,
        opened(etcd.endpoints[0]) as direct,
    ):
        first = await put(direct, "g", b"1")
        async with behind.watch("g", after=Revision(first - 1)) as events:
            assert await next_of(events) == (WatchEvent("g", b"1", first),)
            gate.shut()
            await put(direct, "g", b"2")
            last = await put(direct, "g", b"3")
            await asyncio.to_thread(etcd.members[0].compact, last)
            gate.reopen()
            with pytest.raises(WatchGap, match="compacted"):
                await next_of(events)
            with pytest.raises(WatchGap):
                await next_of(events)
        async with direct.watch("g", after=first) as events:
            with pytest.raises(WatchGap):
                await next_of(events)


async def test_progress_carries_a_quiet_watch_over_a_compaction(tmp_path: Path) -> None:
    """L9: a watch whose keys do not change is not hurt when the history of others is dropped."""
    flags = ("--experimental-watch-progress-notify-interval=100ms",)
    with running_cluster(tmp_path, flags=flags) as etcd:
        async with (
            Gate(etcd.endpoints[0]) as gate,
            opened(gate.endpoint) as behind,
            opened(etcd.endpoints[0]) as direct,
        ):
            first = await put(direct, "quiet")
            async with behind.watch("quiet", after=first) as events:
                assert isinstance(events, Watch)
                for _ in range(10):
                    last = await put(direct, "busy")
                await until(lambda: events.position >= last)
                gate.shut()
                await asyncio.to_thread(etcd.members[0].compact, last)
                gate.reopen()
                changed = await put(direct, "quiet", b"now")
                assert await next_of(events) == (WatchEvent("quiet", b"now", changed),)


async def test_a_revision_in_fragments_is_told_whole(tmp_path: Path) -> None:
    """L1: a lease with more keys than one message of etcd holds ends in one revision."""
    flags = ("--max-request-bytes=65536",)
    with running_cluster(tmp_path, flags=flags) as etcd:
        async with opened(etcd.endpoints[0]) as coordinator:
            lease = await coordinator.grant(ttl_ms=60_000)
            keys = [f"n/{number:04}/".ljust(1000, "x") for number in range(800)]
            for begin in range(0, len(keys), 40):
                some = keys[begin : begin + 40]
                outcome = await coordinator.transact([Put(key, b"", lease) for key in some])
            async with coordinator.watch("n/", after=outcome.revision) as events:
                await coordinator.revoke(lease)
                gone = await next_of(events)
            assert sorted(each.key for each in gone) == keys
            assert len({each.revision for each in gone}) == 1
            async with coordinator.watch("n/", after=Revision(outcome.revision - 1)) as events:
                assert len(await next_of(events)) == 40
                assert sorted(await next_of(events), key=lambda each: each.key) == sorted(
                    gone, key=lambda each: each.key
                )


async def test_a_slow_reader_holds_a_bounded_amount(etcd: EtcdCluster) -> None:
    """R: what is not read stays in etcd; it comes in order when it is read, or is a gap."""
    value = bytes(512 * 1024)
    async with opened(etcd.endpoints[0]) as coordinator:
        start = (await coordinator.range("")).revision
        async with coordinator.watch("s", after=start) as events:
            assert isinstance(events, Watch)
            written = [await put(coordinator, "s", value) for _ in range(40)]
            await until(lambda: events._waiting_bytes > BUFFER_BYTES_MAX)
            taken = [await next_of(events)]
            assert events._waiting_bytes < 2 * BUFFER_BYTES_MAX
            taken += await take(events, until=written[-1])
        assert [revision[0].revision for revision in taken] == written
        await coordinator.transact([Delete("s")])


async def test_a_paused_member_is_noticed_by_a_silent_watch(etcd_three: EtcdCluster) -> None:
    """L9: a watch whose member says nothing any more goes on with another one."""
    leader = etcd_three.leader()
    followers = [member for member in etcd_three.members if member is not leader]
    paused, other = followers
    settings = EtcdSettings(
        (paused.endpoint, other.endpoint), attempt_timeout_ms=500, watch_silence_ms=200
    )
    async with (
        await EtcdCoordinator.open(settings) as coordinator,
        opened(leader.endpoint, namespace="/dovetail/") as direct,
    ):
        start = await put(direct, "p", b"0")
        async with coordinator.watch("p", after=start) as events:
            paused.pause()
            written = await put(direct, "p", b"1")
            assert await next_of(events) == (WatchEvent("p", b"1", written),)
            paused.resume()
            written = await put(direct, "p", b"2")
            assert await next_of(events) == (WatchEvent("p", b"2", written),)


async def test_a_quiet_watch_stays_where_it_is(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L9: a watch with nothing to tell looks after its member, and does not begin anew."""
    streams, looks = [], []
    watch, read = Member.watch, Member.range

    def counted_watch(member: Member) -> object:
        streams.append(member)
        return watch(member)

    async def counted_read(member: Member, request: object, timeout_s: float) -> object:
        looks.append(member)
        return await read(member, request, timeout_s)

    monkeypatch.setattr(Member, "watch", counted_watch)
    async with opened(etcd.endpoints[0], silence_ms=20) as coordinator:
        start = (await coordinator.range("q")).revision
        async with coordinator.watch("q", after=start) as events:
            monkeypatch.setattr(Member, "range", counted_read)
            await until(lambda: len(looks) >= 10)
            written = await put(coordinator, "q")
            assert await next_of(events) == (WatchEvent("q", b"", written),)
    assert len(streams) == 1


async def test_a_watch_that_no_member_acknowledges_is_not_entered(etcd_alone: EtcdCluster) -> None:
    """L9: entering a watch fails when etcd is paused, or away."""
    settings = EtcdSettings(etcd_alone.endpoints, attempt_timeout_ms=200, request_timeout_ms=600)
    async with await EtcdCoordinator.open(settings) as coordinator:
        start = await put(coordinator, "a")
        etcd_alone.members[0].pause()
        with pytest.raises(CoordinationDown, match="acknowledged"):
            async with coordinator.watch("", after=start):
                pass
        entering = asyncio.create_task(coordinator.watch("", after=start).__aenter__())
        await until(lambda: bool(coordinator._watches))
        await coordinator.close()
        with pytest.raises(CoordinationDown, match="closed"):
            await entering
    etcd_alone.members[0].resume()
    async with await EtcdCoordinator.open(settings) as coordinator:
        etcd_alone.kill()
        with pytest.raises(CoordinationDown):
            async with coordinator.watch("", after=start):
                pass
