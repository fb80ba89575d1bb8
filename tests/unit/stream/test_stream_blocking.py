"""Members and replicas for programs without asyncio."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.stream.memory_cluster import DEADLINE_S, MemoryCluster

from dovetail.election import ClusterMember, Leadership
from dovetail.errors import Fenced, InvalidInput, Unavailable, Uncertain
from dovetail.stream import (
    BlockingLeadership,
    BlockingMember,
    BlockingStream,
    Event,
    MemorySource,
    SharedStream,
)
from dovetail.stream.blocking import BlockingHandler
from dovetail.stream.filter import OnlyLeader, Verdict
from dovetail.stream.handler import PlainHandler


def test_a_member_leads_loses_and_is_refused(tmp_path: Path) -> None:
    """S13: the next one leads under a higher term, and the old one is refused."""
    cluster = MemoryCluster(tmp_path)
    with BlockingMember(lambda: cluster.member("a")) as first:
        leadership = first.lead(DEADLINE_S)
        leadership.confirm()
        assert first.status().leader == "a"
        second = cluster.member("b")
        first.call(second.start())

        first.call(first.held.close())
        assert leadership.wait_lost(DEADLINE_S)
        assert not leadership.valid
        later = BlockingLeadership(first, first.call(second.lead()))
        assert later.term > leadership.term
        assert not later.wait_lost(0)
        with pytest.raises((Fenced, Uncertain, Unavailable)):
            leadership.confirm()
        with pytest.raises(Unavailable, match="is closed"):
            first.lead(DEADLINE_S)
        first.call(second.close())


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", ["handler", "filter"])
def test_a_handler_that_ends_its_thread_does_not_end_the_stream(
    tmp_path: Path, end: BaseException, where: str
) -> None:
    """S1, R5: `sys.exit()` ended the loop under the stream, which stood still and called itself
    healthy."""
    cluster, over, raised = MemoryCluster(tmp_path), threading.Event(), list[bytes]()

    def fail_once(event: Event, here: str) -> None:
        if here == where and event.value == b"1" and not raised:
            raised.append(event.value)
            raise end

    class Filter(OnlyLeader):
        def verdict(self, event: Event, leadership: Leadership) -> Verdict:
            fail_once(event, "filter")
            return super().verdict(event, leadership)

    def handle(event: Event, leadership: BlockingLeadership) -> None:
        fail_once(event, "handler")
        if event.value == b"2":
            over.set()

    def make(plain: PlainHandler) -> SharedStream:
        settings = cluster.settings("a")
        return SharedStream(
            cluster.source,
            plain,
            member=cluster.member("a"),
            settings=settings,
            event_filter=Filter(),
        )

    with BlockingStream(make, handle) as stream:
        for value in (b"0", b"1", b"2"):
            stream.call(cluster.source.send(value))
        assert over.wait(DEADLINE_S)
    assert raised == [b"1"]


def test_a_member_that_does_not_lead_in_time_says_so(tmp_path: Path) -> None:
    """S13: one that is cut off from the log never leads."""
    cluster = MemoryCluster(tmp_path)
    cut_off = threading.Event()

    def make() -> ClusterMember:
        member = cluster.member("a")
        start = member.start

        async def start_and_cut() -> None:
            await start()
            cluster.logs["a"].connected = False
            cut_off.set()

        member.start = start_and_cut  # type: ignore[method-assign, assignment]
        return member

    with BlockingMember(make) as member:
        assert cut_off.is_set()
        with pytest.raises(Unavailable, match=r"within 0.1 s"):
            member.lead(0.1)


def test_a_member_that_cannot_start_leaves_no_thread(tmp_path: Path) -> None:
    """S13, R5: the error is the caller's, and the loop's thread has ended."""

    def cannot() -> SharedStream:
        raise InvalidInput("nothing fits")

    before = threading.active_count()
    with (
        pytest.raises(InvalidInput, match="nothing fits"),
        BlockingStream(lambda _: cannot(), lambda event, leadership: None),
    ):
        raise AssertionError
    assert threading.active_count() == before


@contextmanager
def _replica(
    cluster: MemoryCluster, name: str, handler: BlockingHandler, source: MemorySource
) -> Iterator[BlockingStream]:
    def make(plain: PlainHandler) -> SharedStream:
        settings = cluster.settings(name)
        return SharedStream(source, plain, member=cluster.member(name), settings=settings)

    with BlockingStream(make, handler) as stream:
        yield stream


def test_a_plain_handler_handles_and_confirms(tmp_path: Path) -> None:
    """S13: with a leadership whose calls wait too; and health says what it does."""
    cluster, handled = MemoryCluster(tmp_path), threading.Event()
    found: list[tuple[Event, int]] = []

    def answer(event: Event, leadership: BlockingLeadership) -> None:
        leadership.confirm()
        found.append((event, leadership.term))
        handled.set()

    source = MemorySource(lanes=1)
    with _replica(cluster, "a", answer, source) as stream:
        stream.call(_led(stream.held))
        stream.call(source.send(b"x"))
        assert handled.wait(DEADLINE_S)
        assert [(event.value, term) for event, term in found] == [(b"x", stream.status().term)]
        healthy, facts = stream.health()
        assert (healthy, facts["leader"]) == (True, "a")


def test_no_call_outlives_the_end(tmp_path: Path) -> None:
    """S13, R5: who waits when the member is closed is told so, and who comes later too."""
    cluster = MemoryCluster(tmp_path)
    told: list[BaseException] = []
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            member.call(forever())
        except BaseException as error:
            told.append(error)

    with BlockingMember(lambda: cluster.member("a")) as member:
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        assert begun.wait(DEADLINE_S)
    waiting.join(DEADLINE_S)
    assert [type(error) for error in told] == [Uncertain]

    with pytest.raises(InvalidInput, match="is closed"):
        member.status()
    with pytest.raises(InvalidInput, match="is closed"), member:
        raise AssertionError


def test_a_stuck_handler_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13, R5: a thread cannot be stopped; the program goes on all the same."""
    monkeypatch.setattr("dovetail.blocking.END_S_MAX", 0.1)
    monkeypatch.setattr("dovetail.stream.stream.CLOSE_S_MAX", 0.1)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck(event: Event, leadership: BlockingLeadership) -> None:
        begun.set()
        go_on.wait()

    def use() -> None:
        source = MemorySource(lanes=1)
        with _replica(MemoryCluster(tmp_path), "a", stuck, source) as stream:
            stream.call(_led(stream.held))
            stream.call(source.send(b"x"))
            assert begun.wait(DEADLINE_S)
        ended.set()

    try:
        threading.Thread(target=use, daemon=True).start()
        assert begun.wait(DEADLINE_S)
        assert ended.wait(DEADLINE_S)
    finally:
        go_on.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_does_not_lead(tmp_path: Path) -> None:
    """S13, R5: the loop's thread is not in the child; a call would wait for ever."""
    cluster = MemoryCluster(tmp_path)
    with BlockingMember(lambda: cluster.member("a")) as member:
        leadership = member.lead(DEADLINE_S)
        child = os.fork()
        if not child:
            # Only what ends at once: nothing of the test's runner may go on here.
            signal.alarm(int(DEADLINE_S))
            told = 1
            try:
                member.status()
            except InvalidInput:
                told = 2 if leadership.valid else 0
            finally:
                os._exit(told)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        leadership.confirm()


async def _led(stream: SharedStream) -> None:
    await stream.member.lead()


def test_an_async_handler_is_refused(tmp_path: Path) -> None:
    """S13, R6: it would never run."""

    async def answer(event: Event, leadership: BlockingLeadership) -> None:
        raise AssertionError

    with (
        pytest.raises(InvalidInput, match="plain function"),
        _replica(MemoryCluster(tmp_path), "a", answer, MemorySource(lanes=1)),  # type: ignore[arg-type]
    ):
        raise AssertionError
