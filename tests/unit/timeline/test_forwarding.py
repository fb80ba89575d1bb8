"""Dead letters that go to a topic or to another timeline."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import generate_latest

from dovetail import dead_letter
from dovetail.access import EVERYTHING, Kind, Operation
from dovetail.errors import DovetailError, Forbidden, InvalidInput, TopicUnknown, Unavailable
from dovetail.timeline import Dovetail, Draft, Message, Reject, TimelineConfig, frames
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.forwarding import AGAIN_MS, LETTERS_BYTES, LETTERS_MAX, Letter
from dovetail.timeline.stores.memory import MemoryStore


class MemoryTopics:
    """A topic that keeps what it gets, and may be away."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.away = False

    def check(self, topic: str) -> None:
        if topic != "orders.dead":
            raise TopicUnknown(f"no topic {topic!r}")

    async def put(self, topic: str, letters: Sequence[Letter]) -> list[DovetailError | None]:
        if self.away:
            raise Unavailable("the topic is away")
        self.letters += letters
        return [None] * len(letters)


def reject(d: Dovetail, timeline: str = "t") -> None:
    """A consumer that wants nothing."""

    @d.consumer(timeline)
    async def handle(message: Message) -> None:
        raise Reject(f"no {message.body.decode()}")


def headers_of(message: Message) -> dict[str, bytes]:
    return dict(message.headers)


async def test_dead_letters_go_to_another_timeline() -> None:
    """B25: at once, with their headers, why they died and where; without their key."""
    async with fake_dovetail(timelines=["late"]) as d:
        await d.timeline("t").create(TimelineConfig(dead_to="timeline:late"))
        await d.timeline("late").schedule(b"other", delay="1d", key="k")
        got: list[Message] = []

        @d.consumer("late")
        async def keep(message: Message) -> None:
            got.append(message)

        reject(d)
        sent = await d.timeline("t").schedule(
            b"x", key="k", order_key="o", headers={"h": b"1"}, priority=3
        )
        await d.advance("2s")
        (message,) = got
        assert (message.body, message.key, message.order_key, message.priority) == (
            b"x",
            None,
            "o",
            3,
        )
        found = headers_of(message)
        assert found["h"] == b"1"
        assert found[dead_letter.SOURCE] == b"timeline:t"
        assert found[dead_letter.PLACE] == str(sent.id).encode()
        assert found[dead_letter.SOURCE_KEY] == b"k"
        assert found[dead_letter.ATTEMPTS] == b"1"
        assert b"no x" in found[dead_letter.REASON]
        assert await d.timeline("t").dead() == []
        text = generate_latest(d._service.metrics._registry).decode()
        assert 'timeline_messages_total{op="forwarded",timeline="t"} 1.0' in text


async def test_a_death_between_the_two_writes_repeats_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B25: a topic gets the same letter under the same id, a timeline stores it once."""
    drop = MemoryStore.drop_dead
    failing = True

    async def dies(self: MemoryStore, ids: Sequence[int]) -> object:
        if failing and ids:
            raise Unavailable("killed between the two")
        return await drop(self, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStore, "drop_dead", dies)
    topics = MemoryTopics()
    async with fake_dovetail(timelines=["late"]) as d:
        d._service._forwarder._topics = topics
        await d.timeline("t").create(TimelineConfig(dead_to="timeline:late"))
        await d.timeline("u").create(TimelineConfig(dead_to="orders.dead"))
        reject(d), reject(d, "u")
        await d.timeline("t").schedule(b"x")
        await d.timeline("u").schedule(b"y")
        await d.advance(2 * AGAIN_MS / 1000 + 1)
        assert len(topics.letters) > 1
        assert len({letter.id for letter in topics.letters}) == 1
        assert len(await d.timeline("t").dead()) == len(await d.timeline("u").dead()) == 1

        failing = False
        await d.advance(AGAIN_MS / 1000 + 1)
        assert [shown.body for shown in await d.timeline("late").peek()] == [b"x"]
        assert await d.timeline("t").dead() == await d.timeline("u").dead() == []
        assert len({letter.id for letter in topics.letters}) == 1

        # Replayed and dead once more it is another letter.
        done = len(topics.letters)
        await d.timeline("u").alter(dead_to="")
        await d.timeline("u").schedule(b"z")
        await d.advance("1s")
        (dead,) = await d.timeline("u").dead()
        await d.timeline("u").replay(dead.id)
        await d.advance("1s")
        await d.timeline("u").alter(dead_to="orders.dead")
        await d.advance("1s")
        assert [letter.id for letter in topics.letters[done:]] != [dead.id]
        assert len(topics.letters) == done + 1


async def test_what_a_target_does_not_take_stays() -> None:
    """B25: none is lost or trimmed while it is away; what is too large does not hold others up."""
    topics = MemoryTopics()
    topics.away = True
    async with fake_dovetail() as d:
        d._service._forwarder._topics = topics
        await d.timeline("t").create(TimelineConfig(dead_to="orders.dead", dead_max=1))
        reject(d)
        for number in range(3):
            await d.timeline("t").schedule(b"%d" % number)
        await d.advance("1s")
        await d._service.timelines["t"].upkeep.trim(batches_before_ms=0)
        assert len(await d.timeline("t").dead()) == 3
        topics.away = False
        await d.advance(AGAIN_MS / 1000 + 1)
        assert sorted(letter.shown.body for letter in topics.letters) == [b"0", b"1", b"2"]
        assert await d.timeline("t").dead() == []

        # Room for the traceback too, in whatever folder this is.
        await d.timeline("small").create(TimelineConfig(body_bytes_max=5_000))
        await d.timeline("t").alter(dead_to="timeline:small")
        for _ in range(LETTERS_MAX):
            await d.timeline("t").schedule(bytes(6_000))
        await d.timeline("t").schedule(b"fits")
        await d.advance("1s")
        await d.advance(AGAIN_MS / 1000 + 1)
        assert [shown.body for shown in await d.timeline("small").peek()] == [b"fits"]
        assert len(await d.timeline("t").dead(limit=1_000)) == LETTERS_MAX

        await d.timeline("t").alter(body_bytes_max=500)
        await d.timeline("small").delete()
        await d.timeline("t").schedule(b"later")
        await d.advance(AGAIN_MS / 1000 + 1)
        assert len(await d.timeline("t").dead(limit=1_000)) == LETTERS_MAX + 1


@pytest.mark.parametrize(
    "target",
    [
        "timeline:t",
        "timeline:ring",
        "timeline:none",
        "timeline:",
        "timeline:a b",
        "timeline:due.x",
        "unknown",
        "__dovetail_groups",
        "..",
        "a b",
        "x\n",
        "x" * 250,
    ],
)
async def test_a_target_that_cannot_be_is_refused(target: str) -> None:
    """B25, R6: when it is set, and the settings stay as they were."""
    async with fake_dovetail(timelines=["t"]) as d:
        d._service._forwarder._topics = MemoryTopics()
        await d.timeline("due.x").create(TimelineConfig(topic="x"))
        await d.timeline("ring").create(TimelineConfig(dead_to="timeline:t"))
        with pytest.raises((InvalidInput, TopicUnknown)):
            await d.timeline("t").alter(dead_to=target)
        assert (await d.timeline("t").describe()).config.dead_to == ""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match="no"):
            await d.timeline("t").alter(dead_to="orders.dead")


async def test_letters_do_not_go_round_a_ring_that_two_brokers_made_at_once() -> None:
    """B25: each saw only the half that it set; the letters stay, and go on when it is open."""
    async with fake_dovetail(timelines=["t", "late"]) as d:
        await d.timeline("late").alter(dead_to="timeline:t")
        # As a broker does that has not heard of the change above.
        await d._service.catalog.alter("t", {"dead_to": "timeline:late"})
        await d._service._sync()
        reject(d)
        reject(d, "late")
        sent = await d.timeline("t").schedule(b"x")
        await d.advance(AGAIN_MS / 1000 + 1)
        (dead,) = await d.timeline("t").dead()
        assert (dead.id, dead.attempts) == (sent.id, 1)

        await d.timeline("late").alter(dead_to="")
        await d.advance(AGAIN_MS / 1000 + 1)
        assert await d.timeline("t").dead() == []
        (dead,) = await d.timeline("late").dead()
        assert dead.body == b"x"


async def test_a_target_wants_the_right_to_write_there() -> None:
    """B25, R4: who may alter a timeline cannot have its letters written anywhere."""

    class NoWriting:
        principal = "frank"

        def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
            return operation is not Operation.WRITE or not name.endswith("late")

        def allows_some(self, operation: Operation, kind: Kind) -> bool:
            return True

        def demand(self, operation: Operation, kind: Kind, name: str) -> None:
            if not self.allows(operation, kind, name):
                raise Forbidden(f"{self.principal} may not {operation.name} {name}")

    async with fake_dovetail(timelines=["t", "late"]) as d:
        requests = (
            frames.Alter("t", {"dead_to": "timeline:late"}),
            frames.Create("u", TimelineConfig(dead_to="timeline:late")),
        )
        for request in requests:
            with pytest.raises(Forbidden):
                await d._service._dispatcher.answer(request, NoWriting())
        assert [name for name, _ in await d.timelines()] == ["late", "t"]
        for request in requests:
            await d._service._dispatcher.answer(request, EVERYTHING)
        assert (await d.timeline("u").describe()).config.dead_to == "timeline:late"


async def test_a_letter_that_was_too_large_goes_when_its_target_takes_more() -> None:
    """B25: what a target said of it once does not stand for ever."""
    async with fake_dovetail() as d:
        await d.timeline("small").create(TimelineConfig(body_bytes_max=1_000))
        await d.timeline("t").create(TimelineConfig(dead_to="timeline:small"))
        reject(d)
        await d.timeline("t").schedule(bytes(2_000))
        await d.advance("1s")
        assert len(await d.timeline("t").dead()) == 1
        await d.timeline("small").alter(body_bytes_max=10_000)
        await d.advance(AGAIN_MS / 1000 + 1)
        assert await d.timeline("t").dead() == []
        (shown,) = await d.timeline("small").peek()
        assert shown.body == bytes(2_000)


async def test_a_defect_in_the_middle_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """B25, R5: of whatever class; the letters are not forgotten until the next death."""
    topics, put, fails = MemoryTopics(), MemoryTopics.put, [ZeroDivisionError("defect")]

    async def fail_once(self: MemoryTopics, topic: str, letters: Sequence[Letter]) -> Any:
        if fails:
            raise fails.pop()
        return await put(self, topic, letters)

    monkeypatch.setattr(MemoryTopics, "put", fail_once)
    async with fake_dovetail() as d:
        d._service._forwarder._topics = topics
        await d.timeline("t").create(TimelineConfig(dead_to="orders.dead"))
        reject(d)
        await d.timeline("t").schedule(b"x")
        await d.advance("1s")
        assert not fails
        # The task begins anew after a pause of real time.
        async with asyncio.timeout(30):
            while not topics.letters:
                await d.advance(AGAIN_MS / 1000 + 1)
                await asyncio.sleep(0.01)
        assert [letter.shown.body for letter in topics.letters] == [b"x"]


async def test_letters_that_are_refused_hold_no_others_up_however_many_they_are() -> None:
    """B25: all of one partition that is away, say; every letter has its turn."""

    class Choosy(MemoryTopics):
        async def put(self, topic: str, letters: Sequence[Letter]) -> list[DovetailError | None]:
            bad = [letter.shown.body == b"bad" for letter in letters]
            self.letters += [
                letter for letter, is_bad in zip(letters, bad, strict=True) if not is_bad
            ]
            return [Unavailable("away") if is_bad else None for is_bad in bad]

    topics = Choosy()
    async with fake_dovetail() as d:
        d._service._forwarder._topics = topics
        await d.timeline("t").create(TimelineConfig(dead_to="orders.dead"))
        reject(d)
        await d.timeline("t").schedule_many([Draft(b"bad")] * 1_200)
        await d.timeline("t").schedule(b"good")
        await d.advance("5s")
        for _ in range(6):
            await d.advance(AGAIN_MS / 1000 + 1)
        assert [letter.shown.body for letter in topics.letters] == [b"good"]
        assert len([shown async for shown in d.timeline("t").all_dead()]) == 1_200


async def test_letters_are_read_by_their_size() -> None:
    """B25, R8: a hundred of the largest would not fit into memory."""
    topics, read = MemoryTopics(), list[int]()
    dead = MemoryStore.dead

    async def noted(self: MemoryStore, **given: Any) -> Any:
        found = await dead(self, **given)
        read.append(sum(len(shown.body) for shown in found))
        return found

    async with fake_dovetail() as d:
        topics.away = True
        d._service._forwarder._topics = topics
        await d.timeline("t").create(TimelineConfig(dead_to="orders.dead", body_bytes_max=1 << 22))
        reject(d)
        for number in range(24):
            await d.timeline("t").schedule(b"x" * (1 << 20) + b"%d" % number)
        await d.advance("1s")
        topics.away = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "dead", noted)
            await d.advance(AGAIN_MS / 1000 + 1)
        assert len(topics.letters) == 24
        assert max(read) <= 2 * LETTERS_BYTES
