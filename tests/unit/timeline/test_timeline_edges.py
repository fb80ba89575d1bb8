"""What happens at the edges of a timeline: defects, foreign text, wrong arguments, wrong clocks."""

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.timeline.store_conformance import NOW_MS
from tests.unit.timeline.test_fake import seen_by

from dovetail.clock import SystemClock
from dovetail.errors import (
    DiskFull,
    DovetailError,
    Exists,
    InvalidInput,
    NotFound,
    ProtocolViolation,
    StorageOut,
    Unavailable,
    Uncertain,
)
from dovetail.timeline import Draft, Message, frames
from dovetail.timeline.client import consumer
from dovetail.timeline.client.fake import FakeDovetail, fake_dovetail
from dovetail.timeline.client.link import NetworkLink
from dovetail.timeline.client.moments import duration_ms
from dovetail.timeline.client.timeline import Timeline
from dovetail.timeline.config import TimelineConfig, config_of
from dovetail.timeline.engine.health import Condition
from dovetail.timeline.message import Extension, NewMessage, Release, Status
from dovetail.timeline.stores.memory import MemoryStore
from dovetail.timeline.stores.protocol import TimelineStore
from dovetail.timeline.stores.sqlite import SqliteStore


async def test_a_defect_of_the_store_does_not_end_leasing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F26: an exception of any class delays leases, counts against storage, and is tried again."""
    async with fake_dovetail(timelines=["t"]) as d:
        seen = await seen_by(d)
        failed = 0

        async def fail(*args: object, **options: object) -> None:
            nonlocal failed
            failed += 1
            raise KeyError("planted")

        monkeypatch.setattr(MemoryStore, "lease", fail)
        await d.timeline("t").schedule(b"x")
        await d.advance("1m")
        assert failed > 3
        assert d._service.report().condition is Condition.DEGRADED

        monkeypatch.undo()
        await d.advance("2m")
        assert [message.body for message in seen] == [b"x"]
        assert d._service.report().condition is Condition.HEALTHY


class Broken:
    """A store that still reads, and whose file takes no commands."""

    def __init__(self, inner: TimelineStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in {"insert", "lease", "trim"}:
            return getattr(self.inner, name)

        async def refuse(*args: object, **options: object) -> None:
            raise StorageOut("takes no commands: a commit failed")

        return refuse


async def test_a_timeline_whose_file_is_broken_is_told_and_holds_up_no_other() -> None:
    """B16, R5, R8: the store of one that failed had nine in ten commands of all others refused; and
    without consumers nobody heard that it stores nothing any more."""
    async with fake_dovetail(timelines=["bad", "good"]) as d:
        bad = d._service.timelines["bad"]
        inner, bad._store = bad._store, Broken(bad._store)  # type: ignore[assignment]

        async def store() -> None:
            with suppress(DovetailError):
                await bad.use("insert", lambda s: s.insert([], buckets=[], now_ms=NOW_MS))

        for _ in range(40):
            await store()
        await d.timeline("good").schedule(b"x")
        report = d._service.report()
        assert [text for _, text in report.unwell] == [
            "the store of 'bad' keeps failing",
            "'bad' stores nothing any more: takes no commands: a commit failed",
        ]
        assert report.of_all == []
        assert report.concerns("bad")
        assert not report.concerns("good")

        bad._store = inner
        for _ in range(40):
            await store()
        assert d._service.report().condition is Condition.HEALTHY


class Full(Broken):
    """A store whose disk has no room for more."""

    def __getattr__(self, name: str) -> Any:
        if name != "insert":
            return getattr(self.inner, name)

        async def refuse(*args: object, **options: object) -> None:
            raise DiskFull("no room")

        return refuse


async def test_producers_that_find_no_room_do_not_hold_up_consumers() -> None:
    """B16, L6: nine in ten commands were refused then, so that hardly anything was leased and
    deleted, which is what makes room."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").schedule(b"x")
        running = d._service.timelines["t"]
        running._store = Full(running._store)  # type: ignore[assignment]
        for _ in range(40):
            with pytest.raises(DiskFull):
                await running.use("insert", lambda s: s.insert([], buckets=[], now_ms=NOW_MS))
        assert d._service.report().condition is Condition.HEALTHY
        seen = await seen_by(d)
        await d.advance("1s")
        assert [message.body for message in seen] == [b"x"]


class Speechless(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_a_consumer_survives_what_a_handler_raises() -> None:
    """F24: half a character, NUL, or no text at all in an error is one failed attempt, with a
    reason, and takes nothing of the consumer's room."""
    errors = [ValueError("half \ud800"), Speechless(), ValueError("nul \0 here")]
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create(config_of({"attempts_max": 1}))

        @d.consumer("t", concurrency=1)
        async def handle(message: Message) -> None:
            if message.body != b"good":
                raise errors[int(message.body)]

        for body in (b"0", b"1", b"2", b"good"):
            await t.schedule(body)
        await d.advance("1m")
        reasons = [dead.reason.partition("\n")[0] for dead in await t.dead()]
        assert reasons == [
            r"ValueError: half \ud800",
            "Speechless: (its text cannot be read: RuntimeError)",
            r"ValueError: nul \x00 here",
        ]
        assert (await t.describe()).counts.due == 0
        (consumer,) = d.consumers
        assert (consumer.handled, consumer.failed) == (1, 3)


async def test_headers_that_cannot_be_read_are_one_failed_message() -> None:
    """F24: it becomes a dead letter that says why, and the consumer goes on."""
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create(config_of({"attempts_max": 1}))
        seen = await seen_by(d)
        await t.insert([NewMessage(d.now_ms, b"bad", b"\xc1"), NewMessage(d.now_ms, b"good")])
        await d.advance("1m")
        assert [message.body for message in seen] == [b"good"]
        (dead,) = await t.dead()
        assert "1 bytes are no headers" in dead.reason


async def test_the_fake_encodes_as_the_real_node_does() -> None:
    """F24: what a node would not take fails in users' tests too."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput):
            await d.timeline("t").put_schedule("tick", 7, every="1h")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await d.timeline("t").look_up_key("\ud800")
        with pytest.raises(InvalidInput, match="header"):
            await d.timeline("t").schedule(b"", headers={"\ud800": b""})


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "", "k" * 256])
async def test_keys_and_ids_that_no_store_takes_are_refused_at_once(text: str) -> None:
    """F25: by the client, before anything is sent."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match="is not a key"):
            await d.timeline("t").schedule(b"", key=text)
        if text:
            with pytest.raises(InvalidInput, match="is not a consumer id"):
                d.consumer("t", id=text)


async def test_a_foreign_client_cannot_hand_nul_to_a_store() -> None:
    """F25: a node refuses a key, id or name with NUL, and keeps a reason without it."""
    requests = [
        frames.Open("t", "a\0b", lease_ms=30_000),
        frames.Insert(1, [NewMessage(0, b"", key="a\0b")]),
        frames.LookUp("t", [], ["a\0b"]),
        frames.PutSchedule("t", "a\0b", b"", every_ms=1_000),
    ]
    for request in requests:
        with pytest.raises(ProtocolViolation, match="regex"):
            frames.CALLS.read_back(frames.CALLS.request(request, lost=InvalidInput))

    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"attempts_max": 1}))
        await d.timeline("t").schedule(b"x")
        link = d._make_link(1_000, "")
        opened = await link.ask(frames.Open("t", "c", lease_ms=30_000), frames.Opened)
        asked = asyncio.create_task(
            link.ask(frames.Consume(opened.session, 1, 20_000), frames.Pushed)
        )
        await d.advance("1s")
        pushed = await asked
        release = Release(pushed.messages[0].handle, 0, True, "a\0b")
        await link.ask(frames.ReleaseAll(opened.session, [release]), frames.Statuses)
        (dead,) = await d.timeline("t").dead()
        assert dead.reason == "a\N{REPLACEMENT CHARACTER}b"


async def test_scheduling_a_key_that_is_there_is_no_failure() -> None:
    """F29: repeated as often as one likes, it neither waits nor is held back."""
    async with fake_dovetail(timelines=["t"]) as d:
        async with asyncio.timeout(60):
            repeated = [await d.timeline("t").schedule(b"x", key="k", delay=60) for _ in range(50)]
        assert [scheduled.created for scheduled in repeated].count(True) == 1
        assert d._service.report().condition is Condition.HEALTHY


class LossyLink:
    """Stores what it is asked to, and loses the first answers to every insert."""

    def __init__(self, store: TimelineStore, *, lost: int) -> None:
        self._store = store
        self._lost = lost
        self._sent: Counter[int] = Counter()

    async def ask(self, message: Any, kind: type[Any], *, changes: bool = True) -> Any:
        if isinstance(message, frames.Open):
            return frames.Opened(1, TimelineConfig())
        if not isinstance(message, frames.Insert) or message.batch is None:
            raise Unavailable("of no interest here")
        new = message.messages
        stored = await self._store.insert(new, buckets=[0], now_ms=NOW_MS, batch=message.batch)
        self._sent[message.batch.sequence] += 1
        if self._sent[message.batch.sequence] <= self._lost:
            raise Uncertain("the connection broke")
        return frames.InsertedAll(stored)


async def test_many_calls_in_flight_are_each_stored_once(tmp_path: Path) -> None:
    """F4: the connection breaks under four hundred calls, and each of them is sent again."""
    store = await SqliteStore.open(tmp_path / "t.sqlite")
    link: Any = LossyLink(store, lost=1)
    timeline = Timeline("t", link, client_id="p", clock=SystemClock())
    await asyncio.gather(*(timeline.schedule(b"%d" % at) for at in range(400)))
    counts = await store.counts(now_ms=2 * NOW_MS)
    assert counts.due == 400
    await store.close()


async def test_a_second_consumer_under_a_live_id_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F10: two that run under one id would share their leases, and handle messages twice."""
    monkeypatch.setattr(consumer, "TWIN_S_MAX", 0.05)
    async with fake_dovetail(timelines=["t"]) as d:
        first = await seen_by(d, id="a")
        second: list[Message] = []
        d.consumer("t", id="a")(second.append)
        with pytest.raises(Exists, match="give each consumer an id of its own"):
            async with asyncio.timeout(60):
                await d.run()
        for _ in range(20):
            await d.timeline("t").schedule(b"x")
        d._consumers.pop()
        await d.advance("1s")
        assert (len(first), len(second)) == (20, 0)


async def test_a_consumer_that_comes_back_has_its_id() -> None:
    """F10: the same one may open a session again, and the next one when it has gone."""
    async with fake_dovetail(timelines=["t"]) as d:
        link = d._make_link(1_000, "")
        for instance in (7, 7):
            await link.ask(frames.Open("t", "a", "", 30_000, instance), frames.Opened)
        with pytest.raises(Exists):
            await link.ask(frames.Open("t", "a", "", 30_000, 8), frames.Opened)
        await d.advance("1m")
        await link.ask(frames.Open("t", "a", "", 30_000, 8), frames.Opened)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"body": None}, "a body is bytes, text, a dict or a list, not NoneType"),
        ({"body": 7}, "a body is bytes, text, a dict or a list, not int"),
        ({"body": "\ud800"}, "a body cannot be encoded"),
        ({"body": {"a": object()}}, "a body cannot be encoded"),
        ({"key": 7}, "7 is not a key"),
        ({"priority": 99}, "from 0 to 9"),
        ({"priority": "high"}, "from 0 to 9"),
        ({"headers": {"a": "text"}}, "header 'a'"),
        ({"delay": "5"}, "'5' is not a duration; write"),
        ({"delay": "soon"}, "is not a duration"),
        ({"delay": -1}, "is not a duration"),
        ({"delay": float("nan")}, "is not a duration"),
        ({"delay": {}}, "is not a duration"),
        ({"at": "tomorrow"}, "is not a time"),
        ({"at": 1e13}, "9999"),
    ],
)
async def test_a_bad_argument_is_refused_at_once(arguments: dict[str, Any], refusal: str) -> None:
    """F84: it is the caller's error, and nothing is sent or tried again."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match=refusal):
            async with asyncio.timeout(60):
                await d.timeline("t").schedule(**{"body": b"", **arguments})


async def test_a_body_can_be_text_or_json() -> None:
    """F84: it is the same to a handler, whatever it was given as, also from a schedule."""
    async with fake_dovetail(timelines=["t"]) as d:
        seen: list[Message] = []
        d.consumer("t")(seen.append)
        await d.timeline("t").schedule("Grüße")
        await d.advance("1s")
        await d.timeline("t").schedule({"a": [1, None]})
        await d.advance("1s")
        await d.timeline("t").put_schedule("often", ["x"], every="10s")
        await d.advance("10s")
        text, given, often = seen
        assert (text.body, text.text) == ("Grüße".encode(), "Grüße")
        assert (given.body, given.json(), often.json()) == (
            b'{"a":[1,null]}',
            {"a": [1, None]},
            ["x"],
        )
        with pytest.raises(InvalidInput, match="is not JSON"):
            text.json()
        with pytest.raises(InvalidInput, match="is not text"):
            replace(text, body=b"\xff").text  # noqa: B018


async def test_a_link_refuses_what_a_node_would_hang_up_on() -> None:
    """F84: without a node to be reached, and without waiting for one."""
    link = NetworkLink("127.0.0.1:1", client_id="c")
    bad: Any = NewMessage(0, "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Expected `bytes`, got `str`"):
        async with asyncio.timeout(60):
            await link.ask(frames.Insert(1, [bad]), frames.InsertedAll)
    await link.close()


def test_durations_as_people_write_them() -> None:
    """F84: parts with units add up."""
    assert duration_ms("1h59m") == 119 * 60_000
    assert duration_ms("1m 30s 5ms") == 90_005
    assert duration_ms("1.5h") == duration_ms(5_400) == duration_ms(timedelta(minutes=90))


class SlowClock(SystemClock):
    """The clock of a machine that is ten minutes behind a fake node."""

    def __init__(self, d: FakeDovetail) -> None:
        self._node = d

    def wall_ms(self) -> int:
        return self._node.now_ms - 600_000


async def test_a_delay_is_counted_by_the_clock_of_the_node() -> None:
    """F14: from the first message on, also where the producer's clock is wrong."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = Timeline("t", d._make_link(1_000, ""), client_id="p", clock=SlowClock(d))
        scheduled = await t.schedule(b"x", delay="5m")
        now = await t.schedule(b"now")
        later, at_once = await t.look_up(scheduled.id, now.id)
        assert later is not None
        assert abs(later.due_ms - d.now_ms - 300_000) < 1_000
        assert at_once is not None
        assert at_once.due_ms == d.now_ms
        assert await t.move(scheduled.id, delay="1h") is Status.OK
        (moved,) = await t.look_up(scheduled.id)
        assert moved is not None
        assert abs(moved.due_ms - d.now_ms - 3_600_000) < 1_000


async def test_a_schedule_that_every_deployment_puts_fires_each_time_once() -> None:
    """F9: `every="1h"` put every 45 minutes fires each hour, and a minute of cron once."""
    async with fake_dovetail(timelines=["hours", "minutes"]) as d:
        hours, minutes = await seen_by(d, "hours"), await seen_by(d, "minutes")
        for _ in range(8):
            await d.timeline("hours").put_schedule("s", b"", every="1h")
            await d.advance("45m")
        await d.advance("1m")  # The sixth is due at the very end of the six hours.
        assert len(hours) == 6

        for _ in range(60):
            await d.timeline("minutes").put_schedule("s", b"", cron="* * * * *")
            await d.advance("5s")
        due = [message.due_ms for message in minutes]
        assert len(due) == len(set(due)) == 5


async def test_plain_handlers_run_as_many_at_once_as_was_asked_for() -> None:
    """F31: 40 of them meet at a barrier, which fewer threads would not pass."""
    async with fake_dovetail(timelines=["t"]) as d:
        barrier = threading.Barrier(40, timeout=60)
        d.consumer("t", concurrency=40)(lambda message: barrier.wait())
        await d.timeline("t").schedule_many([Draft(b"") for _ in range(40)])
        await d.advance("1s")
        (consumer,) = d.consumers
        assert (consumer.handled, consumer.failed) == (40, 0)


async def test_a_coroutine_that_does_not_look_like_one_is_awaited() -> None:
    """F31: a plain handler that returns an awaitable has not handled anything yet."""
    seen: list[bytes] = []

    class Handler:
        async def __call__(self, message: Message) -> None:
            seen.append(message.body)

    async with fake_dovetail(timelines=["t"]) as d:
        d.consumer("t")(Handler())
        await d.timeline("t").schedule(b"x")
        await d.advance("1s")
        assert seen == [b"x"]


async def test_what_a_new_session_takes_up_the_old_one_does_not_give_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B13: a session that is replaced gives back what it had not pushed, while the new one asks for
    what its consumer holds. Either may be first; one attempt is never in two hands."""
    wait = asyncio.Event()
    release = MemoryStore.release

    async def later(self: MemoryStore, *args: Any, **options: Any) -> list[Status]:
        await wait.wait()
        return await release(self, *args, **options)

    async with fake_dovetail(timelines=["t"]) as d:
        link = d._make_link(1_000, "")
        opening = frames.Open("t", "c", lease_ms=30_000, instance=5)
        first = (await link.ask(opening, frames.Opened)).session
        waiting = asyncio.create_task(link.ask(frames.Consume(first, 1, 20_000), frames.Pushed))
        await d.settle()
        await d.timeline("t").insert([NewMessage(d.now_ms + 4, b"x")])
        await d.settle()
        (consumer,) = d._service.timelines["t"].consumers.values()
        assert len(consumer.outbox) == 1, "it is leased, and waits for its time"

        monkeypatch.setattr(MemoryStore, "release", later)
        second = (await link.ask(opening, frames.Opened)).session
        held = (await link.ask(frames.Held(second, 10, []), frames.Pushed)).messages
        wait.set()
        await d.settle()
        handles = [leased.handle for leased in held]
        extend = frames.Extend(second, [Extension(handle, d.now_ms + 30_000) for handle in handles])
        assert (await link.ask(extend, frames.Statuses)).statuses == [Status.OK]
        with pytest.raises(NotFound):
            await waiting
