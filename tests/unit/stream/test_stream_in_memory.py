"""The whole stream, with its log, its network and its source in memory."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stream.memory_cluster import DEADLINE_S, MemoryCluster

from dovetail.clock import SystemClock
from dovetail.election import Algorithm, Leadership, MemberName
from dovetail.errors import Unavailable
from dovetail.stream import Event, MemorySource, SharedStream, Takeover, Verdict


def offsets(cluster: MemoryCluster) -> list[int]:
    return [event.offset for _, event, _ in cluster.handled]


async def test_only_the_leader_handles(tmp_path: Path) -> None:
    """S1: all replicas consume, one handles, in order and each event once."""
    async with MemoryCluster(tmp_path) as cluster:
        for name in ("a", "b", "c"):
            await cluster.start_stream(name)
        leader = await cluster.wait_leader()
        for number in range(100):
            await cluster.source.send(b"%d" % number)
        await cluster.until(lambda: len(cluster.handled) == 100)
        assert offsets(cluster) == list(range(100))
        assert {name for name, _, _ in cluster.handled} == {leader}
        read = [stream.metrics.registry.get_sample_value for stream in cluster.streams.values()]
        series = "dovetail_stream_events_received_total"
        await cluster.until(lambda: [sample(series) for sample in read] == [100.0] * 3)


@pytest.mark.parametrize("algorithm", [Algorithm.MAJORITY, Algorithm.BULLY])
async def test_resume_loses_nothing(tmp_path: Path, algorithm: Algorithm) -> None:
    """S9: the next leader begins where the last one had committed, also events of the gap."""
    async with MemoryCluster(tmp_path, algorithm=algorithm) as cluster:
        for name in ("a", "b", "c"):
            await cluster.start_stream(name)
        leader = await cluster.wait_leader()
        for number in range(50):
            await cluster.source.send(b"%d" % number, lane=number % 2)
        await cluster.until(lambda: len(cluster.handled) >= 10)
        cluster.network.cut_off(MemberName(leader))
        cluster.logs[leader].connected = False
        for number in range(50, 60):
            await cluster.source.send(b"%d" % number, lane=number % 2)
        values = {b"%d" % number for number in range(60)}
        await cluster.until(lambda: {event.value for _, event, _ in cluster.handled} == values)
        assert len({name for name, _, _ in cluster.handled}) == 2


async def _send_until_handled(cluster: MemoryCluster, prefix: bytes) -> None:
    """A leader that skips begins a moment after it leads: the first ones may come too early."""
    number, before = 0, len(cluster.handled)
    async with asyncio.timeout(DEADLINE_S):
        while len(cluster.handled) == before:
            number += 1
            await cluster.source.send(b"%s %d" % (prefix, number))
            await asyncio.sleep(0.01)


async def test_skip_begins_with_what_comes_after(tmp_path: Path) -> None:
    """S9: events of the gap are left out, and none is handled under two terms."""
    async with MemoryCluster(tmp_path, takeover=Takeover.SKIP) as cluster:
        for name in ("a", "b", "c"):
            await cluster.start_stream(name)
        leader = await cluster.wait_leader()
        await _send_until_handled(cluster, b"before")
        cluster.logs[leader].connected = False
        cluster.network.cut_off(MemberName(leader))
        await cluster.source.send(b"in the gap")
        await cluster.until(lambda: not cluster.members[leader].leadership)
        await cluster.wait_leader(other_than=leader)
        await _send_until_handled(cluster, b"after")
        values = [event.value for _, event, _ in cluster.handled]
        assert b"in the gap" not in values
        assert len(values) == len(set(values))


async def test_the_source_is_opened_again_and_the_handler_may_fail(tmp_path: Path) -> None:
    """S1: neither a lost source nor a handler that raises stops the stream."""
    async with MemoryCluster(tmp_path) as cluster:
        seen: list[bytes] = []

        async def fails_on_odd(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            cluster.changed.set()
            if event.offset % 2:
                raise ValueError("a user's mistake")

        stream = await cluster.start_stream("a", fails_on_odd)
        await cluster.wait_leader()
        for number in range(4):
            await cluster.source.send(b"%d" % number)
        await cluster.until(lambda: len(seen) == 4)
        cluster.source.connected = False
        await cluster.until(lambda: not stream.health()[0])
        await cluster.source.send(b"4")
        cluster.source.connected = True
        await cluster.until(lambda: len(seen) == 5)
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        sample = stream.metrics.registry.get_sample_value
        assert sample("dovetail_stream_events_failed_total") == 2.0
        assert (sample("dovetail_stream_source_reconnects_total") or 0) >= 1


@pytest.mark.parametrize("plain", [False, True])
async def test_a_cancelled_task_inside_a_handler_is_its_failure(
    tmp_path: Path, plain: bool
) -> None:
    """F22: the next event is handled, though the handler let a `CancelledError` through."""
    async with MemoryCluster(tmp_path) as cluster:
        seen: list[bytes] = []

        async def awaits_cancelled(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting

        def raises_cancelled(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            raise asyncio.CancelledError

        stream = await cluster.start_stream("a", raises_cancelled if plain else awaits_cancelled)
        await cluster.wait_leader()
        for number in range(3):
            await cluster.source.send(b"%d" % number)
        await cluster.until(lambda: len(seen) == 3)
        sample = stream.metrics.registry.get_sample_value
        await cluster.until(lambda: sample("dovetail_stream_events_failed_total") == 3.0)


async def test_a_cancelled_task_inside_a_source_opens_it_again(tmp_path: Path) -> None:
    """F22: a source that lets a `CancelledError` through does not end the reading."""
    async with MemoryCluster(tmp_path) as cluster:

        class CancelsOnce(MemorySource):
            cancelled = False

            def read(self, position: Any) -> Any:
                if not self.cancelled:
                    self.cancelled = True
                    raise asyncio.CancelledError
                return super().read(position)

        source = CancelsOnce(lanes=2)
        await cluster.start_stream("a", source=source)
        await cluster.wait_leader()
        await source.send(b"x")
        await cluster.until(lambda: cluster.handled)


async def test_a_clean_end_cuts_a_handler_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F22: a handler that is cancelled because its stream ends does not get another event."""
    monkeypatch.setattr("dovetail.stream.stream.CLOSE_S_MAX", 0.01)
    async with MemoryCluster(tmp_path) as cluster:
        seen: list[bytes] = []

        async def endless(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            await asyncio.Event().wait()

        stream = await cluster.start_stream("a", endless)
        await cluster.wait_leader()
        await cluster.source.send(b"0")
        await cluster.source.send(b"1")
        await cluster.until(lambda: seen)
        async with asyncio.timeout(DEADLINE_S):
            await stream.close()
        assert seen == [b"0"]


class _ByValue:
    """A filter that does what the event says."""

    open = False

    def verdict(self, event: Event, _: Leadership) -> Verdict:
        if event.value == b"raise" and not self.open:
            raise ValueError("a user's mistake")
        if event.value == b"wait" and not self.open:
            return Verdict.WAIT
        return Verdict.SKIP if event.value == b"skip" else Verdict.HANDLE


@pytest.mark.parametrize("word", [b"wait", b"raise"])
async def test_a_filter_skips_events_or_makes_them_wait(
    tmp_path: Path, word: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F23: what is skipped stops nothing; what waits is seen in health, and is not lost."""
    monkeypatch.setattr("dovetail.stream.stream.HELD_S_MAX", 0.2)
    async with MemoryCluster(tmp_path) as cluster:
        rule, seen = _ByValue(), list[bytes]()

        async def note(event: Event, _: Leadership) -> None:
            seen.append(event.value)

        async with SharedStream(
            cluster.source,
            note,
            member=cluster.member("a"),
            settings=cluster.settings("a"),
            event_filter=rule,
        ) as stream:
            await cluster.wait_leader()
            for value in (b"1", b"skip", b"2", word, b"3"):
                await cluster.source.send(value)
            await cluster.until(lambda: not stream.health()[0])
            assert seen == [b"1", b"2"]
            held = stream.health()[1]["held_by_filter"]
            assert (held["lane"], held["offset"]) == (0, 3)

            rule.open = True
            await cluster.until(lambda: len(seen) == 4)
            assert seen == [b"1", b"2", word, b"3"]
            assert stream.health()[0]
            sample = stream.metrics.registry.get_sample_value
            await cluster.until(lambda: sample("dovetail_stream_events_handled_total") == 4.0)
            assert sample("dovetail_stream_events_skipped_total") == 1.0


async def test_a_plain_function_runs_on_a_thread(tmp_path: Path) -> None:
    """S1: so that a blocking handler does not cost the leadership."""
    async with MemoryCluster(tmp_path) as cluster:
        threads: list[int] = []

        def handle(_: Event, __: Leadership) -> None:
            threads.append(threading.get_ident())

        await cluster.start_stream("a", handle)
        await cluster.wait_leader()
        await cluster.source.send(b"x")
        await cluster.until(lambda: threads)
        assert threads[0] != threading.get_ident()


async def test_a_leader_that_lost_the_stream_gives_way(tmp_path: Path) -> None:
    """S8: the others have it, and one of them goes on from the committed position."""
    async with MemoryCluster(tmp_path) as cluster:
        sources = {}
        for name in ("a", "b", "c"):
            sources[name] = source = _view_of(cluster.source)
            await cluster.start_stream(name, source=source)
        leader = await cluster.wait_leader()
        await cluster.source.send(b"0")
        await cluster.until(lambda: cluster.handled)
        sources[leader].connected = False
        await cluster.source.send(b"1")
        await cluster.until(lambda: len(cluster.handled) == 2)
        assert cluster.handled[1][0] != leader


def _view_of(shared: MemorySource) -> MemorySource:
    """Another reader of the same events, which can be cut off alone."""
    view = MemorySource(lanes=2)
    view._events, view._changed = shared._events, shared._changed
    return view


async def test_a_busy_leader_stops_reading_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8: more events than the handler can take are no reason for an election."""
    monkeypatch.setattr("dovetail.stream.stream.WAITING_EVENTS_MAX", 20)
    async with MemoryCluster(tmp_path) as cluster:
        release = asyncio.Event()
        seen: list[int] = []

        async def slow(event: Event, _: Leadership) -> None:
            seen.append(event.offset)
            await release.wait()

        for name in ("a", "b", "c"):
            await cluster.start_stream(name, slow)
        leader = await cluster.wait_leader()
        term = cluster.members[leader].status().term
        for number in range(200):
            await cluster.source.send(b"%d" % number)
            if number % 40 == 0:
                await asyncio.sleep(0.2)
        await cluster.until(lambda: seen)
        await asyncio.sleep(0.6)
        assert cluster.members[leader].status().term == term
        release.set()
        await cluster.until(lambda: len(seen) == 200)
        assert seen == list(range(200))


async def test_start_can_wait_until_it_is_asked_for(tmp_path: Path) -> None:
    """S10: `start_immediately = False`."""
    async with MemoryCluster(tmp_path, start_immediately=False) as cluster:
        stream = await cluster.start_stream("a")
        assert cluster.log.records == []
        assert stream.health() == (False, {"status": "starting"})
        await stream.start()
        await cluster.wait_leader()
        healthy, facts = stream.health()
        assert healthy
        assert (facts["role"], facts["leader"]) == ("leader", "a")
        assert facts["term"] == cluster.members["a"].status().term


async def test_a_stream_that_is_not_there_fails_the_start(tmp_path: Path) -> None:
    """S1: clearly, before anything is announced."""
    async with MemoryCluster(tmp_path) as cluster:
        cluster.source.connected = False
        with pytest.raises(Unavailable, match="cut off"):
            await cluster.start_stream("a")
        assert cluster.log.records == []


async def test_parts_can_be_replaced(tmp_path: Path) -> None:
    """S2, F76: filter, stream handler, shared log, transport, member and clock of the user's own.

    The filter skips an event, and makes another one wait, with those behind it.
    """

    class EvenOnly:
        def __init__(self) -> None:
            self.may_go = False
            self.asked: Counter[int] = Counter()

        def verdict(self, event: Event, leadership: Leadership) -> Verdict:
            del leadership
            self.asked[event.offset] += 1
            if event.offset % 2:
                return Verdict.SKIP
            return Verdict.HANDLE if event.offset < 4 or self.may_go else Verdict.WAIT

    class OwnReader:
        """A stream handler that makes its own events."""

        def __init__(self) -> None:
            self._sought = asyncio.Event()

        async def run(self, receiver: Any) -> None:
            while True:
                await self._sought.wait()
                self._sought.clear()
                events: Sequence[Event] = [Event(0, n, b"own") for n in range(7)]
                await receiver.on_events(events, self.generation)

        def seek(self, position: Any, generation: int) -> None:
            self.generation = generation
            self._sought.set()

    class CountingClock(SystemClock):
        calls = 0

        def monotonic_ms(self) -> float:
            CountingClock.calls += 1
            return super().monotonic_ms()

    async with MemoryCluster(tmp_path) as cluster:
        member = cluster.member("a")
        member._clock = CountingClock()
        seen: list[Event] = []

        async def handle(event: Event, _: Leadership) -> None:
            seen.append(event)

        async with SharedStream(
            cluster.source,
            handle,
            member=member,
            settings=cluster.settings("a"),
            event_filter=(only_even := EvenOnly()),
            stream_handler=OwnReader(),
        ):
            await cluster.until(lambda: only_even.asked[4] > 2)
            assert [event.offset for event in seen] == [0, 2]
            assert 5 not in only_even.asked, "what is behind one that waits is not asked about"
            only_even.may_go = True
            await cluster.until(lambda: len(seen) == 4)
        assert [event.offset for event in seen] == [0, 2, 4, 6]
        assert CountingClock.calls > 10


@pytest.mark.parametrize("plain", [False, True])
async def test_a_clean_end_commits_what_was_handled(tmp_path: Path, plain: bool) -> None:
    """S9: a rolling restart handles nothing twice and leaves nothing out."""
    async with MemoryCluster(tmp_path) as cluster:
        seen: list[bytes] = []
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def slow(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            begun.set()
            await asyncio.sleep(0.01)

        def slow_plain(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            loop.call_soon_threadsafe(begun.set)
            time.sleep(0.01)

        for name in ("a", "b", "c"):
            handler = slow_plain if plain else slow
            await cluster.start_stream(name, handler, _view_of(cluster.source))
        leader = await cluster.wait_leader()
        for number in range(60):
            await cluster.source.send(b"%d" % number)
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        await cluster.streams[leader].close()
        assert len(seen) < 60
        await cluster.until(lambda: len(seen) >= 60)
        assert seen == [b"%d" % number for number in range(60)]
