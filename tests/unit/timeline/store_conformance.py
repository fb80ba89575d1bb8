"""What every store of timelines must do; each implementation runs this suite."""

import asyncio
import random
from dataclasses import replace

import pytest
from msgspec import structs

from dovetail.errors import NotFound
from dovetail.timeline.engine.schedule import firing_at, new_schedule
from dovetail.timeline.message import (
    BatchId,
    Extension,
    Handle,
    Leased,
    MessageId,
    NewMessage,
    Release,
    State,
    Status,
    TimelineId,
    Version,
)
from dovetail.timeline.stores.protocol import LeaseAsk, Stores, TimelineStore

NOW_MS = 1_700_000_000_000
LEASE_MS = 30_000
ATTEMPTS_MAX = 3
BUCKETS = 64


def message(due_ms: int = NOW_MS, body: bytes = b"body", **fields: object) -> NewMessage:
    return NewMessage(due_ms, body, **fields)  # type: ignore[arg-type]


def ask(consumer: str = "a", **fields: int) -> LeaseAsk:
    plain = LeaseAsk(consumer, 0, BUCKETS, NOW_MS, 100, LEASE_MS)
    return replace(plain, **fields)  # type: ignore[arg-type]


async def put(
    store: TimelineStore, *messages: NewMessage, buckets: list[int] | None = None
) -> list[MessageId]:
    """Stores messages; their ids."""
    where = buckets or [at % BUCKETS for at in range(len(messages))]
    outcomes = await store.insert(messages, buckets=where, now_ms=NOW_MS)
    assert all(outcome.status is Status.OK for outcome in outcomes)
    return [outcome.id for outcome in outcomes]


async def take(store: TimelineStore, *asks: LeaseAsk, now_ms: int = NOW_MS) -> list[Leased]:
    """Leases; everything that was leased."""
    result = await store.lease(asks or (ask(),), now_ms=now_ms, attempts_max=ATTEMPTS_MAX)
    return [leased for part in result.leased for leased in part]


async def give_back(store: TimelineStore, *items: Release) -> list[Status]:
    return await store.release(items, now_ms=NOW_MS, attempts_max=ATTEMPTS_MAX)


async def kill(store: TimelineStore, *, reason: str = "bad luck") -> None:
    """Fails everything that is due until it is a dead letter."""
    for _ in range(ATTEMPTS_MAX):
        taken = await take(store)
        await give_back(store, *(Release(item.handle, NOW_MS, True, reason) for item in taken))


class StoreConformance:
    """The suite; `stores` and `store` are the implementation's fixtures."""

    # Messages

    async def test_a_message_comes_out_as_it_went_in(self, store: TimelineStore) -> None:
        """B6, B20: body, headers, key, priority, due time and bucket are kept."""
        sent = message(NOW_MS - 5, bytes(range(256)), headers=b"\x01", key="k", priority=7)
        (identity,) = await put(store, sent, buckets=[17])
        (leased,) = await take(store)
        expected = (identity, NOW_MS - 5, 1, 7, 17, bytes(range(256)), b"\x01", "k")
        assert expected == (
            leased.id,
            leased.due_ms,
            leased.attempt,
            leased.priority,
            leased.bucket,
            leased.body,
            leased.headers,
            leased.key,
        )

    async def test_ids_are_never_given_twice(self, stores: Stores) -> None:
        """B13, B20: an old handle cannot fit a new message, also after a restart."""
        await stores.provision(TimelineId(7))
        store = await stores.open(TimelineId(7))
        (first,) = await put(store, message())
        (leased,) = await take(store)
        await store.delete([leased.handle])
        await store.close()
        store = await stores.open(TimelineId(7))
        (second,) = await put(store, message())
        await store.close()
        assert second > first

    async def test_messages_come_by_due_time_whatever_their_bucket(
        self, store: TimelineStore
    ) -> None:
        """B12: a limit takes the oldest, not the lowest bucket, so none starves."""
        await put(store, message(NOW_MS - 1), message(NOW_MS - 3), message(NOW_MS - 2))
        taken = await take(store, ask(limit=2))
        assert [leased.due_ms for leased in taken] == [NOW_MS - 3, NOW_MS - 2]

    async def test_what_goes_out_together_goes_by_priority(self, store: TimelineStore) -> None:
        """B6: priority orders what is handed out at once."""
        await put(store, message(NOW_MS - 2), message(NOW_MS - 1, priority=5))
        assert [leased.priority for leased in await take(store)] == [5, 0]

    async def test_the_first_of_an_order_key_goes_first(self, store: TimelineStore) -> None:
        """B24: also if it is stored last, in a batch with others; but nobody goes before one that
        somebody holds, and what is done makes way for the first of the rest."""
        late = [message(NOW_MS + at, order_key="ab"[at % 2]) for at in range(4)]
        ids = await put(store, *late, message(NOW_MS))
        early = [message(NOW_MS + 9 - at, order_key="acb"[at % 3]) for at in range(12)]
        ids += await put(store, *early)
        horizon = ask(horizon_ms=NOW_MS + 99)
        taken = {leased.order_key: leased for leased in await take(store, horizon)}
        firsts = {key: leased.id for key, leased in taken.items()}
        assert firsts == {"a": ids[0], None: ids[4], "b": ids[16], "c": ids[15]}

        (first,) = await put(store, message(NOW_MS - 1, order_key="a"))
        assert not await take(store, horizon)
        await store.delete([taken[key].handle for key in ("a", "b")])
        assert [leased.id for leased in await take(store, horizon)] == [first, ids[1]]

    async def test_nothing_is_leased_before_its_time(self, store: TimelineStore) -> None:
        """B7: what is visible after the horizon stays, and the next time is told."""
        await put(store, message(NOW_MS + 10), message(NOW_MS + 5))
        result = await store.lease([ask()], now_ms=NOW_MS, attempts_max=ATTEMPTS_MAX)
        assert result.leased == ((),)
        assert result.next_ms == NOW_MS + 5

    async def test_buckets_are_respected(self, store: TimelineStore) -> None:
        """B8: a range is half-open, and a mask picks single buckets of it."""
        await put(store, *[message() for _ in range(BUCKETS)], buckets=list(range(BUCKETS)))
        mask = bytes(1 if bucket % 2 else 0 for bucket in range(10, 20))
        ranges = (ask("a", low=0, high=10), replace(ask("b", low=10, high=20), mask=mask))
        result = await store.lease(ranges, now_ms=NOW_MS, attempts_max=ATTEMPTS_MAX)
        first, second = ({leased.bucket for leased in part} for part in result.leased)
        assert first == set(range(10))
        assert second == {11, 13, 15, 17, 19}

    # Leases

    async def test_a_lease_hides_the_message_until_it_ends(self, store: TimelineStore) -> None:
        """B13: at most one live lease; it ends by itself, and the next one has another version."""
        await put(store, message())
        (first,) = await take(store)
        assert first.until_ms == NOW_MS + LEASE_MS
        end_ms = first.until_ms
        assert not await take(store, ask("b", horizon_ms=end_ms - 1), now_ms=end_ms - 1)
        (second,) = await take(store, ask("b", horizon_ms=end_ms), now_ms=end_ms)
        assert second.version > first.version
        assert second.attempt == 2
        assert await store.delete([first.handle]) == [Status.STALE]
        assert await store.delete([second.handle]) == [Status.OK]

    async def test_a_lease_begins_at_delivery(self, store: TimelineStore) -> None:
        """B13: a message that is leased a little ahead is held from its due time on."""
        await put(store, message(NOW_MS + 20))
        (leased,) = await take(store, ask(horizon_ms=NOW_MS + 20))
        assert leased.until_ms == NOW_MS + 20 + LEASE_MS

    async def test_a_live_lease_is_not_taken_ahead_of_its_end(self, store: TimelineStore) -> None:
        """B13: looking ahead takes what waits, never what somebody still holds."""
        await put(store, message(), message(NOW_MS + LEASE_MS - 1))
        (first,) = await take(store)
        ahead = ask("b", horizon_ms=NOW_MS + LEASE_MS + 10)
        (waiting,) = await take(store, ahead, now_ms=NOW_MS + LEASE_MS - 5)
        assert waiting.id != first.id
        assert await store.delete([first.handle]) == [Status.OK]

    async def test_an_ended_lease_that_nobody_took_is_still_the_holders(
        self, store: TimelineStore
    ) -> None:
        """B13: the version decides, not the clock."""
        await put(store, message(), message())
        first, second = await take(store)
        later_ms = NOW_MS + 10 * LEASE_MS
        extension = Extension(first.handle, later_ms)
        assert await store.extend([extension]) == [Status.OK]
        assert await store.delete([second.handle]) == [Status.OK]

    async def test_an_ended_lease_that_others_passed_over_is_still_the_holders(
        self, store: TimelineStore
    ) -> None:
        """B13: somebody leased what was due, and had no room for this one."""
        await put(store, *[message(key=f"k{at}") for at in range(4)], buckets=[1, 1, 1, 1])
        one, two, three, four = await take(store)
        end_ms = NOW_MS + LEASE_MS
        elsewhere = ask("b", low=2, horizon_ms=end_ms)
        assert not await take(store, elsewhere, now_ms=end_ms)
        (refused,) = await store.insert([message(key="k0")], buckets=[0], now_ms=end_ms)
        assert (refused.status, refused.id) == (Status.EXISTS, one.id)
        assert await store.delete([one.handle]) == [Status.OK]
        assert await store.extend([Extension(two.handle, end_ms + 5)]) == [Status.OK]
        assert await give_back(store, Release(three.handle, end_ms + 6)) == [Status.OK]
        (again,) = await take(store, ask("b", horizon_ms=end_ms), now_ms=end_ms)
        assert (again.id, again.attempt) == (four.id, 2)
        assert await store.delete([four.handle, two.handle]) == [Status.STALE, Status.OK]

    async def test_what_comes_back_stands_in_line_by_its_time(self, store: TimelineStore) -> None:
        """B12, B13: an ended lease is visible since its end, among those that wait."""
        (first,) = await put(store, message())
        await take(store)
        end_ms = NOW_MS + LEASE_MS
        before, after = await put(store, message(end_ms - 1), message(end_ms + 1))
        later_ms = end_ms + 1
        leased = [
            (await take(store, ask(limit=1, horizon_ms=later_ms), now_ms=later_ms))[0].id
            for _ in range(3)
        ]
        assert leased == [before, first, after]

    async def test_an_ended_lease_can_be_cancelled_and_moved(self, store: TimelineStore) -> None:
        """B13, B19: nobody holds it any more, and the former holder is refused."""
        one, two = await put(store, message(), message())
        handles = {item.id: item.handle for item in await take(store)}
        end_ms = NOW_MS + LEASE_MS
        assert await store.cancel([one], now_ms=end_ms) == [Status.OK]
        assert await store.move([(two, end_ms + 9)], now_ms=end_ms) == [Status.OK]
        gone = await store.delete([handles[one], handles[two]])
        assert gone == [Status.GONE, Status.STALE]
        assert not await take(store, ask(horizon_ms=end_ms), now_ms=end_ms)
        (again,) = await take(store, ask(horizon_ms=end_ms + 9), now_ms=end_ms + 9)
        assert (again.id, again.due_ms) == (two, end_ms + 9)

    async def test_two_who_ask_at_once_never_get_the_same(self, store: TimelineStore) -> None:
        """B13: at most one live lease per message, whoever asks."""
        await put(store, *[message() for _ in range(200)])
        asked = [take(store, ask(f"c{number}", limit=50)) for number in range(8)]
        taken = [leased.id for part in await asyncio.gather(*asked) for leased in part]
        assert len(taken) == len(set(taken)) == 200

    async def test_each_item_has_its_own_outcome(self, store: TimelineStore) -> None:
        """B6: one stale handle spoils nothing for its neighbours."""
        await put(store, message(), message(), message())
        one, two, three = await take(store)
        old = Handle(two.id, Version(two.version - 1))
        gone = Handle(MessageId(999_999), Version(1))
        assert await store.delete([one.handle, old, gone, three.handle]) == [
            Status.OK,
            Status.STALE,
            Status.GONE,
            Status.OK,
        ]
        extended = await store.extend([Extension(old, NOW_MS), Extension(two.handle, NOW_MS + 5)])
        assert extended == [Status.STALE, Status.OK]
        assert await store.delete([two.handle, one.handle]) == [Status.OK, Status.GONE]

    async def test_a_release_says_when_it_comes_again(self, store: TimelineStore) -> None:
        """B6, B13: the message is due at the new time, and the old handle is worth nothing."""
        await put(store, message())
        (first,) = await take(store)
        assert await give_back(store, Release(first.handle, NOW_MS + 50)) == [Status.OK]
        assert await store.delete([first.handle]) == [Status.STALE]
        assert await give_back(store, Release(first.handle, NOW_MS)) == [Status.STALE]
        assert not await take(store)
        (second,) = await take(store, ask(horizon_ms=NOW_MS + 50), now_ms=NOW_MS + 50)
        assert second.attempt == 2

    async def test_what_was_not_tried_is_no_attempt(self, store: TimelineStore) -> None:
        """B19: a consumer that stops gives back without counting."""
        await put(store, message())
        for _ in range(ATTEMPTS_MAX + 2):
            (leased,) = await take(store)
            assert leased.attempt == 1
            released = await give_back(store, Release(leased.handle, NOW_MS, counted=False))
            assert released == [Status.OK]

    async def test_a_purge_removes_what_nobody_holds(self, store: TimelineStore) -> None:
        """B23: what waits, what is due and what is over; not what is held, and no dead letters."""
        await put(store, message())
        await kill(store)
        await put(store, *[message() for _ in range(3)], message(due_ms=NOW_MS + 60_000))
        over = await take(store, ask(limit=1))
        (held,) = await take(store, ask(limit=1), now_ms=NOW_MS + LEASE_MS - 1)
        assert held.id != over[0].id
        then_ms = NOW_MS + LEASE_MS
        assert await store.purge(now_ms=then_ms, limit=2) == 2
        assert await store.purge(now_ms=then_ms, limit=10) == 1
        assert await store.purge(now_ms=then_ms, limit=10) == 0
        counts = await store.counts(now_ms=then_ms)
        assert (counts.waiting, counts.due, counts.leased, counts.dead) == (0, 0, 1, 1)
        assert await store.delete([held.handle]) == [Status.OK]

    async def test_what_is_rejected_is_a_dead_letter_at_once(self, store: TimelineStore) -> None:
        """B22: beside one that is only released, in the same command."""
        await put(store, message(), message())
        one, two = await take(store, ask(limit=2))
        rejected = Release(one.handle, NOW_MS, True, "not ours", rejected=True)
        statuses = await give_back(store, rejected, Release(two.handle, NOW_MS))
        assert statuses == [Status.DEAD, Status.OK]
        (dead,) = await store.dead(after=MessageId(0), limit=10)
        assert (dead.id, dead.reason, dead.attempts) == (one.id, "not ours", 1)

    async def test_a_consumer_that_restarts_gets_its_leases_back(
        self, store: TimelineStore
    ) -> None:
        """B6: live leases by consumer id; those of others and ended ones are not among them."""
        await put(store, *[message() for _ in range(4)])
        mine = await take(store, ask("me", limit=2))
        await take(store, ask("other"))
        held = await store.take_up("me", known=(), now_ms=NOW_MS, limit=10)
        assert sorted(item.handle.id for item in held) == sorted(item.id for item in mine)
        assert {item.body for item in held} == {b"body"}
        assert {item.attempt for item in held} == {1}
        assert len(await store.take_up("me", known=(), now_ms=NOW_MS, limit=1)) == 1
        assert not await store.take_up("me", known=(), now_ms=NOW_MS + LEASE_MS, limit=10)

    async def test_what_a_consumer_took_up_nobody_else_can_give_back(
        self, store: TimelineStore
    ) -> None:
        """B13: a lease that is taken up has a new version, and a broker that had it in hand for the
        same consumer is refused; what the consumer knows of stays as it is."""
        await put(store, message(), message())
        first, second = await take(store, ask("me", limit=2))
        (held,) = await store.take_up("me", known={first.handle}, now_ms=NOW_MS, limit=10)
        assert (held.id, held.until_ms) == (second.id, second.until_ms)
        old = Release(second.handle, NOW_MS, counted=False)
        assert await give_back(store, old) == [Status.STALE]
        assert await store.delete([first.handle, second.handle]) == [Status.OK, Status.STALE]
        assert await store.extend([Extension(held.handle, NOW_MS + 2 * LEASE_MS)]) == [Status.OK]
        assert not await take(store, ask("other"), now_ms=NOW_MS + LEASE_MS)
        assert await store.delete([held.handle]) == [Status.OK]

    # Producers

    async def test_a_batch_with_a_name_is_stored_once(self, store: TimelineStore) -> None:
        """B6, B20: sent again because its answer was lost, it has the same outcome."""
        batch = BatchId(2**62, 5)
        sent = [message(key="k"), message(), message(key="k")]
        first = await store.insert(sent, buckets=[1, 2, 3], now_ms=NOW_MS, batch=batch)
        again = await store.insert(sent, buckets=[4, 5, 6], now_ms=NOW_MS, batch=batch)
        assert first == again
        assert [outcome.status for outcome in first] == [Status.OK, Status.OK, Status.EXISTS]
        assert first[2].id == first[0].id
        assert (await store.counts(now_ms=NOW_MS)).due == 2
        other = BatchId(2**62, 6)
        assert await store.insert(sent[1:2], buckets=[1], now_ms=NOW_MS, batch=other) != first[1:2]

    async def test_what_was_refused_of_a_batch_stays_refused(self, store: TimelineStore) -> None:
        """B6, F4: a broker decides by time and settings, which change until it is sent again."""
        batch = BatchId(2**62, 9)
        sent = [message(), message()]
        refused = {0: Status.TOO_FAR, 3: Status.TOO_LARGE}
        first = await store.insert(
            sent, buckets=[1, 2], now_ms=NOW_MS, batch=batch, refused=refused
        )
        statuses = [Status.TOO_FAR, Status.OK, Status.OK, Status.TOO_LARGE]
        assert [outcome.status for outcome in first] == statuses
        more = [*sent, message()]
        again = await store.insert(more, buckets=[1, 2, 3], now_ms=NOW_MS, batch=batch)
        assert again == first
        assert (await store.counts(now_ms=NOW_MS)).due == 2

    async def test_the_name_of_a_batch_is_kept_while_it_is_under_way(
        self, store: TimelineStore
    ) -> None:
        """F4: however many other batches of its producer are stored meanwhile."""
        sent = [message()]
        first = await store.insert(sent, buckets=[0], now_ms=NOW_MS, batch=BatchId(9, 1))
        for sequence in range(2, 200):
            await store.insert(sent, buckets=[0], now_ms=NOW_MS, batch=BatchId(9, sequence))
        again = await store.insert(sent, buckets=[0], now_ms=NOW_MS, batch=BatchId(9, 1))
        assert again == first
        assert (await store.counts(now_ms=NOW_MS)).due == 199

    async def test_a_unique_key_is_free_again_when_its_message_is_gone(
        self, store: TimelineStore
    ) -> None:
        """B19: refused while it waits or is leased, by the id of the one that has it."""
        (identity,) = await put(store, message(key="daily"))
        (leased,) = await take(store)
        (refused,) = await store.insert([message(key="daily")], buckets=[0], now_ms=NOW_MS)
        assert (refused.status, refused.id) == (Status.EXISTS, identity)
        await store.delete([leased.handle])
        await put(store, message(key="daily"))
        (found, missing) = await store.look_up_keys(["daily", "none"], now_ms=NOW_MS)
        assert found is not None
        assert found.id != identity
        assert missing is None

    async def test_cancel_and_move_need_a_message_that_nobody_holds(
        self, store: TimelineStore
    ) -> None:
        """B19: a live lease is not taken from its holder."""
        one, two, three = await put(store, message(), message(NOW_MS + 9), message(NOW_MS + 8))
        await take(store)
        gone = MessageId(999_999)
        assert await store.cancel([one, two, gone], now_ms=NOW_MS) == [
            Status.LEASED,
            Status.OK,
            Status.GONE,
        ]
        moved = await store.move([(one, NOW_MS), (three, NOW_MS), (two, NOW_MS)], now_ms=NOW_MS)
        assert moved == [Status.LEASED, Status.OK, Status.GONE]
        (leased,) = await take(store)
        assert (leased.id, leased.due_ms) == (three, NOW_MS)

    # Dead letters

    async def test_the_last_failed_attempt_makes_a_dead_letter(self, store: TimelineStore) -> None:
        """B19: with its reason and its attempts; it can be replayed, from the first attempt on."""
        (identity,) = await put(store, message(key="k", headers=b"h"))
        await kill(store, reason="no such customer")
        assert not await take(store)
        (dead,) = await store.dead(after=MessageId(0), limit=10)
        assert (dead.id, dead.state, dead.attempts) == (identity, State.DEAD, ATTEMPTS_MAX)
        assert (dead.reason, dead.died_ms) == ("no such customer", NOW_MS)
        assert (dead.body, dead.headers, dead.key) == (b"body", b"h", "k")
        assert await store.look_up([identity], now_ms=NOW_MS) == [dead]
        gone = MessageId(999_999)
        assert await store.replay([identity, gone], due_ms=NOW_MS) == [Status.OK, Status.GONE]
        (again,) = await take(store)
        assert (again.id, again.attempt, again.body) == (identity, 1, b"body")
        assert again.version > dead.version

    async def test_a_message_that_dies_takes_nobodys_place(self, store: TimelineStore) -> None:
        """B13, B19: who asks for one gets one, though the first that is due has had its chances."""
        doomed, fine = await put(store, message(), message(NOW_MS + ATTEMPTS_MAX * LEASE_MS))
        now_ms = NOW_MS
        for _ in range(ATTEMPTS_MAX):
            (leased,) = await take(store, ask(horizon_ms=now_ms, limit=1), now_ms=now_ms)
            assert leased.id == doomed
            now_ms += LEASE_MS
        result = await store.lease(
            [ask(horizon_ms=now_ms, limit=1)], now_ms=now_ms, attempts_max=ATTEMPTS_MAX
        )
        assert [leased.id for leased in result.leased[0]] == [fine]
        assert result.died == 1

    async def test_leases_that_end_unanswered_are_attempts_too(self, store: TimelineStore) -> None:
        """B19: a message that kills its consumers is not delivered for ever."""
        await put(store, message(), message(NOW_MS + 10**7))
        now_ms = NOW_MS
        for attempt in range(1, ATTEMPTS_MAX + 1):
            (leased,) = await take(store, ask(horizon_ms=now_ms), now_ms=now_ms)
            assert leased.attempt == attempt
            now_ms = leased.until_ms
        result = await store.lease(
            [ask(horizon_ms=now_ms)], now_ms=now_ms, attempts_max=ATTEMPTS_MAX
        )
        assert (result.leased, result.died) == (((),), 1)
        (dead,) = await store.dead(after=MessageId(0), limit=10)
        assert (dead.attempts, dead.reason) == (
            ATTEMPTS_MAX,
            "the lease ended without an answer",
        )

    async def test_a_replay_does_not_break_a_unique_key(self, store: TimelineStore) -> None:
        """B19: the key was taken meanwhile, so the dead letter stays one."""
        (identity,) = await put(store, message(key="k"))
        await kill(store)
        await put(store, message(NOW_MS + 5, key="k"))
        assert await store.replay([identity], due_ms=NOW_MS) == [Status.EXISTS]
        assert len(await store.dead(after=MessageId(0), limit=10)) == 1

    async def test_dead_letters_can_be_dropped(self, store: TimelineStore) -> None:
        """B19: for good, with their bodies; a message that lives is none."""
        first, second = await put(store, message(), message(key="k"))
        await kill(store)
        (alive,) = await put(store, message(NOW_MS + 10**6))
        ok, gone = Status.OK, Status.GONE
        assert await store.drop_dead([second, alive, second]) == [ok, gone, gone]
        assert [dead.id for dead in await store.dead(after=MessageId(0), limit=9)] == [first]
        assert await store.replay([second], due_ms=NOW_MS) == [gone]
        found = await store.look_up([second, alive], now_ms=NOW_MS)
        assert [shown is None for shown in found] == [True, False]

    async def test_dead_letters_are_bounded(self, store: TimelineStore) -> None:
        """B19: above the limit the oldest go."""
        ids = await put(store, *[message() for _ in range(5)])
        await kill(store)
        trimmed = await store.trim(dead_max=2, batches_before_ms=0)
        assert trimmed.dead == 3
        left = await store.dead(after=MessageId(0), limit=10)
        assert [dead.id for dead in left] == ids[3:]
        assert await store.look_up(ids[:1], now_ms=NOW_MS) == [None]

    # Looking

    async def test_a_walk_meets_every_message_or_dead_letter_once(
        self, store: TimelineStore
    ) -> None:
        """B23: in pages, by id, without bodies; as it is shown otherwise."""
        dead_ids = await put(store, *[message(key=f"d{number}") for number in range(3)])
        await kill(store)
        ids = await put(store, *[message(NOW_MS + 5, headers=b"\x90", order_key="o")] * 3)
        for wanted, dead in ((dead_ids, True), (ids, False)):
            first = await store.walk(after=MessageId(0), limit=2, dead=dead, now_ms=NOW_MS)
            rest = await store.walk(after=first[-1].id, limit=2, dead=dead, now_ms=NOW_MS)
            assert [shown.id for shown in (*first, *rest)] == wanted
            looked = await store.look_up(wanted, now_ms=NOW_MS)
            assert [*first, *rest] == [
                shown and structs.replace(shown, body=b"") for shown in looked
            ]

    async def test_counts_by_state(self, store: TimelineStore) -> None:
        """B6: waiting, due, leased, dead; the time of the oldest that is due."""
        await put(store, message())
        await kill(store)
        await put(store, message(), message(NOW_MS - 7), message(NOW_MS + 5), message(NOW_MS + 6))
        await take(store, ask(limit=1))
        counts = await store.counts(now_ms=NOW_MS)
        assert (counts.waiting, counts.due, counts.leased, counts.dead) == (2, 1, 1, 1)
        assert counts.oldest_due_ms == NOW_MS

    async def test_a_look_shows_the_state(self, store: TimelineStore) -> None:
        """B6: look up by id, and peek at what comes next."""
        waiting, due, leased = await put(
            store, message(NOW_MS + 9), message(NOW_MS), message(NOW_MS - 9)
        )
        await take(store, ask("me", limit=1))
        shown = await store.look_up([waiting, due, leased, MessageId(999)], now_ms=NOW_MS)
        states = [None if item is None else item.state for item in shown]
        assert states == [State.WAITING, State.DUE, State.LEASED, None]
        assert shown[2] is not None
        assert (shown[2].holder, shown[2].visible_ms) == ("me", NOW_MS + LEASE_MS)
        peeked = await store.peek(now_ms=NOW_MS, limit=2)
        assert [item.id for item in peeked] == [due, waiting]

    async def test_the_histogram_counts_by_window(self, store: TimelineStore) -> None:
        """B14: how much becomes due in each of the next windows; half-open."""
        await put(store, *[message(NOW_MS + at) for at in (0, 1, 9, 10, 25, 30)])
        edges = [NOW_MS, NOW_MS + 10, NOW_MS + 20, NOW_MS + 30]
        assert await store.histogram(edges) == [3, 1, 1]

    # Schedules

    async def test_a_schedule_fires_each_time_once(self, store: TimelineStore) -> None:
        """B19: whoever tries, and however often."""
        schedule = new_schedule("tick", b"body", now_ms=NOW_MS, every_ms=1_000)
        await store.put_schedule(schedule)
        assert await store.schedules() == [schedule]
        firing = firing_at(schedule, now_ms=NOW_MS + 1_000, bucket=3)
        tries = [store.fire([firing], now_ms=NOW_MS + 1_000) for _ in range(5)]
        fired = [done for (done,) in await asyncio.gather(*tries)]
        assert sorted(fired) == [False] * 4 + [True]
        (leased,) = await take(store, ask(horizon_ms=NOW_MS + 1_000), now_ms=NOW_MS + 1_000)
        assert (leased.body, leased.due_ms, leased.bucket) == (b"body", NOW_MS + 1_000, 3)
        (moved,) = await store.schedules()
        assert moved == replace(schedule, next_ms=NOW_MS + 2_000)

    async def test_the_next_schedules_are_found_among_many(self, store: TimelineStore) -> None:
        """F65: what is near is read, not all; upkeep looks twice a second."""
        for number in range(20):
            made = new_schedule(f"s{number:02d}", b"x" * 100, now_ms=NOW_MS, every_ms=1_000)
            await store.put_schedule(replace(made, next_ms=NOW_MS + number * 1_000))
        near = await store.schedules(before_ms=NOW_MS + 2_000)
        assert [schedule.name for schedule in near] == ["s00", "s01"]
        assert len(await store.schedules()) == 20
        assert await store.schedules(before_ms=0) == []

    async def test_a_schedule_that_is_put_again_goes_on_where_it_is(
        self, store: TimelineStore
    ) -> None:
        """F9: it fires nothing again, and its time comes however often it is put."""
        for made in ({"every_ms": 1_000}, {"cron": "0 3 * * *", "zone": "Europe/Vienna"}):
            first = new_schedule("s", b"1", now_ms=NOW_MS, **made)  # type: ignore[arg-type]
            await store.put_schedule(first)
            firing = firing_at(first, now_ms=first.next_ms, bucket=1)
            assert await store.fire([firing], now_ms=NOW_MS) == [True]
            again = new_schedule("s", b"2", now_ms=NOW_MS + 10, **made)  # type: ignore[arg-type]
            await store.put_schedule(again)
            (held,) = await store.schedules()
            assert (held.next_ms, held.start_ms) == (firing.following_ms, first.start_ms)
            assert held.body == b"2"

        other = new_schedule("s", b"3", now_ms=NOW_MS + 20, every_ms=2_000)
        await store.put_schedule(other)
        assert await store.schedules() == [other]

    async def test_a_schedule_is_replaced_and_removed(self, store: TimelineStore) -> None:
        """B19: one schedule has a name."""
        first = new_schedule("b", b"1", now_ms=NOW_MS, every_ms=1_000)
        second = new_schedule("b", b"2", now_ms=NOW_MS, cron="0 3 * * *", zone="Europe/Vienna")
        other = new_schedule("a", b"3", now_ms=NOW_MS, every_ms=500)
        for schedule in (first, second, other):
            await store.put_schedule(schedule)
        assert await store.schedules() == [other, second]
        assert await store.drop_schedule("b")
        assert not await store.drop_schedule("b")
        assert await store.schedules() == [other]

    # The place

    async def test_what_was_stored_is_there_after_a_restart(self, stores: Stores) -> None:
        """B20: leases, dead letters and names of batches too."""
        await stores.provision(TimelineId(3))
        store = await stores.open(TimelineId(3))
        batch = BatchId(1, 1)
        sent = [message(), message(NOW_MS + 5)]
        outcomes = await store.insert(sent, buckets=[1, 2], now_ms=NOW_MS, batch=batch)
        (leased,) = await take(store)
        before = await store.counts(now_ms=NOW_MS)
        await store.close()
        store = await stores.open(TimelineId(3))
        assert await store.counts(now_ms=NOW_MS) == before
        again = await store.insert(sent, buckets=[1, 2], now_ms=NOW_MS, batch=batch)
        assert again == outcomes
        assert await store.delete([leased.handle]) == [Status.OK]
        await store.close()

    async def test_a_dropped_timeline_is_gone_and_its_number_works_again(
        self, stores: Stores
    ) -> None:
        """B4: provision and drop can be repeated; nothing of the former life is there."""
        number, other = TimelineId(11), TimelineId(12)
        for _ in range(2):
            await stores.provision(number)
        await stores.provision(other)
        store = await stores.open(number)
        await put(store, message())
        await store.close()
        for _ in range(2):
            await stores.drop(number)
        assert await stores.existing() >= {other}
        assert number not in await stores.existing()
        with pytest.raises(NotFound):
            await stores.open(number)
        await stores.provision(number)
        store = await stores.open(number)
        assert (await store.counts(now_ms=NOW_MS)).due == 0
        await store.close()

    async def test_large_batches_of_everything(self, store: TimelineStore) -> None:
        """B6: more than a thousand items to a command, with bodies of all sizes."""
        count = 1_037
        rng = random.Random(1)
        bodies = [rng.randbytes(rng.choice([0, 1, 100, 5_000])) for _ in range(count)]
        ids = await put(store, *[message(body=body) for body in bodies])
        taken = await take(store, ask(limit=count))
        assert {leased.id: leased.body for leased in taken} == dict(zip(ids, bodies, strict=True))
        extensions = [Extension(leased.handle, NOW_MS + 99_000) for leased in taken]
        assert await store.extend(extensions) == [Status.OK] * count
        assert await store.delete([leased.handle for leased in taken]) == [Status.OK] * count
        counts = await store.counts(now_ms=NOW_MS)
        assert (counts.waiting, counts.due, counts.leased) == (0, 0, 0)
