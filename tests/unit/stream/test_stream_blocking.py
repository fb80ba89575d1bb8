"""Members and replicas for programs without asyncio."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.stream.memory_cluster import DEADLINE_S, MemoryCluster

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
        with pytest.raises(Unavailable, match=r"within 0.1 s"):
            first.lead(0.1)
        first.call(second.close())


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
