"""Events whose handler raises: tried again in order, and set aside at last."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.stream.memory_cluster import MemoryCluster

from dovetail.election import Leadership
from dovetail.errors import InvalidInput, InvalidSetting
from dovetail.stream import Event, MemoryDeadLetters, SharedStream, StreamSettings
from dovetail.stream.retrying import Attempts, Next, Retries

EVENT, OTHER = Event(0, 7, b"x"), Event(0, 8, b"y")


def test_pauses_grow_and_end() -> None:
    """S12: doubled with each attempt, up to the longest, however many there were."""
    retries = Retries(attempts_max=100, first_ms=100, longest_ms=1_000)
    assert [retries.pause_s(n) for n in (1, 2, 3, 4, 5, 99)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_attempts_of_an_event() -> None:
    """S12: waits between two, is given up after the last, and another event begins anew."""
    attempts = Attempts(Retries(attempts_max=2, first_ms=1_000))
    assert attempts.next_for(EVENT, 0.0) is Next.HANDLE
    assert attempts.on_failure(EVENT, 0.0, reason="r", traceback="t") is Next.WAIT
    assert attempts.next_for(EVENT, 0.9) is Next.WAIT
    assert attempts.pause_s(0.9) == pytest.approx(0.1)
    assert attempts.next_for(EVENT, 1.0) is Next.HANDLE
    assert attempts.on_failure(EVENT, 1.0, reason="r", traceback="t") is Next.SET_ASIDE
    assert attempts.next_for(EVENT, 1.0) is Next.SET_ASIDE
    attempts.on_not_set_aside(1.0)
    assert attempts.next_for(EVENT, 1.5) is Next.WAIT
    assert attempts.next_for(EVENT, 2.0) is Next.SET_ASIDE
    assert attempts.next_for(OTHER, 2.0) is Next.HANDLE
    assert attempts.failing is None


@pytest.mark.parametrize(
    "given",
    [
        {"attempts_max": 0},
        {"attempts_max": -1},
        {"retry_ms": 0},
        {"retry_ms": 2_000, "retry_ms_max": 1_000},
        {"dead_letters_topic": "messages"},
        {"dead_letters_topic": "a b.dead"},
        {"dead_letters_topic": "a\0.dead"},
    ],
)
def test_settings_that_cannot_work(given: dict[str, Any]) -> None:
    """S12, R6: before anything runs."""
    settings = StreamSettings("log", shared_secret="x" * 16, **given)
    with pytest.raises((InvalidSetting, InvalidInput)):
        settings.check()


class _Handler:
    """Fails for some values, so many times."""

    def __init__(self, cluster: MemoryCluster, failures: dict[bytes, int]) -> None:
        self._cluster = cluster
        self._left = failures
        self.seen: list[bytes] = []

    def plain(self, event: Event, _: Leadership) -> None:
        self.seen.append(event.value)
        if self._left.get(event.value, 0) > 0:
            self._left[event.value] -= 1
            raise ValueError(f"not {event.value!r}")

    async def coroutine(self, event: Event, leadership: Leadership) -> None:
        self._cluster.changed.set()
        self.plain(event, leadership)


def _stream(
    cluster: MemoryCluster, handler: Any, dead: MemoryDeadLetters | None = None
) -> SharedStream:
    return SharedStream(
        cluster.source,
        handler,
        member=cluster.member("a"),
        settings=cluster.settings("a"),
        dead_letters=dead,
    )


@pytest.mark.parametrize("plain", [False, True])
async def test_a_failing_event_is_tried_again_before_those_behind_it(
    tmp_path: Path, plain: bool
) -> None:
    """S12: in order; what succeeds at last is no dead letter."""
    async with MemoryCluster(tmp_path, attempts_max=3, retry_ms=20) as cluster:
        handler, dead = _Handler(cluster, {b"1": 2}), MemoryDeadLetters()
        stream = _stream(cluster, handler.plain if plain else handler.coroutine, dead)
        async with stream:
            await cluster.wait_leader()
            for value in (b"0", b"1", b"2"):
                await cluster.source.send(value)
            await cluster.until(lambda: len(handler.seen) == 5)
            assert handler.seen == [b"0", b"1", b"1", b"1", b"2"]
            assert dead.letters == []
            sample = stream.metrics.registry.get_sample_value
            await cluster.until(lambda: sample("dovetail_stream_events_handled_total") == 3.0)
            assert sample("dovetail_stream_events_failed_total") == 2.0


async def test_an_event_that_fails_for_the_last_time_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: it waits while that is not possible, seen in health; nothing behind it is lost."""
    monkeypatch.setattr("dovetail.stream.stream.HELD_S_MAX", 0.1)
    async with MemoryCluster(tmp_path, attempts_max=2, retry_ms=20) as cluster:
        handler, dead = _Handler(cluster, {b"bad": 99}), MemoryDeadLetters()
        dead.connected = False
        stream = _stream(cluster, handler.coroutine, dead)
        async with stream:
            await cluster.wait_leader()
            for value in (b"0", b"bad", b"1"):
                await cluster.source.send(value)
            await cluster.until(
                lambda: not stream.health()[0] and stream.health()[1]["failing"]["attempts"] == 2
            )
            failing = stream.health()[1]["failing"]
            assert (failing["offset"], failing["attempts"]) == (1, 2)
            assert "ValueError" in failing["reason"]
            assert handler.seen == [b"0", b"bad", b"bad"]

            dead.connected = True
            await cluster.until(lambda: handler.seen[-1] == b"1")
            assert handler.seen == [b"0", b"bad", b"bad", b"1"]
            (letter,) = dead.letters
            assert (letter.event.value, letter.attempts) == (b"bad", 2)
            assert "ValueError" in letter.traceback
            await cluster.until(lambda: stream.health()[0])
            sample = stream.metrics.registry.get_sample_value
            assert sample("dovetail_stream_events_dead_total") == 1.0


async def test_a_stream_that_waits_for_a_retry_ends_at_once(tmp_path: Path) -> None:
    """S12: a close does not wait for the next attempt, and the event is not committed."""
    async with MemoryCluster(
        tmp_path, attempts_max=9, retry_ms=600_000, retry_ms_max=600_000
    ) as cluster:
        handler = _Handler(cluster, {b"0": 1})
        stream = _stream(cluster, handler.coroutine)
        async with stream:
            await cluster.wait_leader()
            await cluster.source.send(b"0")
            await cluster.until(lambda: handler.seen)
        cluster.source.connected = True
        await cluster.start_stream("b", handler.coroutine)
        await cluster.until(lambda: len(handler.seen) == 2)


class _Unexpected(BaseException):
    """Of no class that anybody catches."""


@pytest.mark.parametrize("raised", [GeneratorExit, _Unexpected])
@pytest.mark.parametrize("plain", [False, True])
async def test_an_exception_of_any_class_is_a_failed_attempt(
    tmp_path: Path, plain: bool, raised: type[BaseException]
) -> None:
    """S12, R5: counted and set aside; it neither stops the stream nor repeats what went well."""
    async with MemoryCluster(tmp_path, attempts_max=2, retry_ms=20) as cluster:
        seen, dead = list[bytes](), MemoryDeadLetters()

        def fail(event: Event, _: Leadership) -> None:
            seen.append(event.value)
            if event.value == b"1":
                raise raised

        async def fail_async(event: Event, leadership: Leadership) -> None:
            fail(event, leadership)

        stream = _stream(cluster, fail if plain else fail_async, dead)
        async with stream:
            await cluster.wait_leader()
            for value in (b"0", b"1", b"2"):
                await cluster.source.send(value)
            await cluster.until(lambda: b"2" in seen)
            assert seen == [b"0", b"1", b"1", b"2"]
            assert [letter.event.value for letter in dead.letters] == [b"1"]
