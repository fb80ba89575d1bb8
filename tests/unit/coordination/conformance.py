"""What every coordinator must do: one suite, run on each implementation.

A module for one implementation subclasses `CoordinatorConformance` and gives the fixture
`coordinator_factory`: each call opens a coordinator that shows no keys at first, whatever its
revision, and closes it at the end. Nothing here depends on a clock that can be set. Lease tests
take real time, so an implementation states the shortest lease that it keeps to.
"""

import asyncio
import time
from typing import ClassVar

import pytest
from tests.unit.coordination.conformance_model import ModelConformance
from tests.unit.coordination.driving import (
    DEADLINE_S,
    CoordinatorFactory,
    Events,
    increment,
    next_of,
    put,
    replay,
    take,
)

from dovetail.coordination import (
    ABSENT,
    KEY_BYTES_MAX,
    LEASE_TTL_MS_MAX,
    TRANSACTION_CHANGES_MAX,
    VALUE_BYTES_MAX,
    Change,
    Delete,
    KeyValue,
    Put,
    Revision,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import CoordinationDown, InvalidInput, LeaseLost


class CoordinatorConformance(ModelConformance):
    """The suite. Revisions are compared, never counted: others may write to the same service."""

    #: The shortest lease that the implementation keeps to. etcd: 2000.
    lease_ttl_ms: ClassVar[int] = 2000

    # ---- keys and transactions

    async def test_a_key_is_read_as_it_was_written(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: a key carries its value, the revision of its change and that of its creation."""
        async with coordinator_factory() as coordinator:
            assert await coordinator.get("node/1") is None
            created = await put(coordinator, "node/1", b"one")
            assert await coordinator.get("node/1") == KeyValue("node/1", b"one", created, created)
            changed = await put(coordinator, "node/1", b"one")
            assert changed > created
            assert await coordinator.get("node/1") == KeyValue("node/1", b"one", changed, created)
            await coordinator.transact([Delete("node/1")])
            assert await coordinator.get("node/1") is None
            again = await put(coordinator, "node/1", b"")
            assert await coordinator.get("node/1") == KeyValue("node/1", b"", again, again)

    async def test_a_range_is_sorted_and_holds_its_prefix_only(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: a range gives all keys with the prefix, in the order of their UTF-8 bytes."""
        async with coordinator_factory() as coordinator:
            names = ["t", "t/", "t/a", "t/a/1", "t/é", "t/😀", "t/\uffff", "t0", "u", "s\U0010ffff"]
            outcome = await coordinator.transact([Put(name, b"") for name in reversed(names)])
            for prefix in ("t/", "t", "t/a", "", "nothing", "t/\uffff"):
                snapshot = await coordinator.range(prefix)
                expected = [name for name in names if name.startswith(prefix)]
                assert [item.key for item in snapshot.items] == sorted(expected, key=str.encode)
                assert snapshot.revision >= outcome.revision

    async def test_of_many_creators_one_wins(self, coordinator_factory: CoordinatorFactory) -> None:
        """L9: of many claims under the condition that the key is absent, one is applied."""
        async with coordinator_factory() as coordinator:
            outcomes = await asyncio.gather(
                *(
                    coordinator.transact(
                        [Put("owner", str(number).encode())],
                        conditions=[Unchanged("owner", ABSENT)],
                    )
                    for number in range(30)
                )
            )
            (winner,) = [number for number, outcome in enumerate(outcomes) if outcome.applied]
            item = await coordinator.get("owner")
            assert item is not None
            assert item.value == str(winner).encode()
            assert item.revision == outcomes[winner].revision

    async def test_concurrent_increments_lose_none(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: a hundred tasks that compare and set one key all count."""
        async with coordinator_factory() as coordinator:
            await asyncio.gather(*(increment(coordinator, "counter") for _ in range(100)))
            item = await coordinator.get("counter")
            assert item is not None
            assert item.value == b"100"

    async def test_conditions_guard_all_changes(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: one condition that fails refuses the whole transaction and raises no revision."""
        async with coordinator_factory() as coordinator:
            a = await put(coordinator, "a", b"1")
            b = await put(coordinator, "b", b"1")
            refused: list[list[Unchanged]] = [
                [Unchanged("a", a), Unchanged("b", a)],
                [Unchanged("a", ABSENT)],
                [Unchanged("c", b)],
                [Unchanged("a", a), Unchanged("a", b)],
            ]
            for conditions in refused:
                outcome = await coordinator.transact(
                    [Put("a", b"2"), Delete("b"), Put("c", b"2")], conditions=conditions
                )
                assert not outcome.applied
                snapshot = await coordinator.range("")
                assert [(item.key, item.value) for item in snapshot.items] == [
                    ("a", b"1"),
                    ("b", b"1"),
                ]
            outcome = await coordinator.transact(
                [Put("a", b"2"), Delete("b"), Put("c", b"2")],
                conditions=[Unchanged("a", a), Unchanged("b", b), Unchanged("c", ABSENT)],
            )
            assert outcome.applied
            snapshot = await coordinator.range("")
            assert [(item.key, item.revision) for item in snapshot.items] == [
                ("a", outcome.revision),
                ("c", outcome.revision),
            ]

    async def test_a_transaction_is_seen_whole(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: readers never see a part of a transaction, whoever else writes."""
        async with coordinator_factory() as coordinator:
            await coordinator.transact([Put("sum/a", b"50"), Put("sum/b", b"50")])
            done = asyncio.Event()

            async def move(amount: int) -> None:
                while True:
                    a, b = (await coordinator.range("sum/")).items
                    outcome = await coordinator.transact(
                        [
                            Put("sum/a", str(int(a.value) - amount).encode()),
                            Put("sum/b", str(int(b.value) + amount).encode()),
                        ],
                        conditions=[Unchanged("sum/a", a.revision), Unchanged("sum/b", b.revision)],
                    )
                    if outcome.applied:
                        return

            async def read() -> int:
                reads = 0
                while not done.is_set():
                    a, b = (await coordinator.range("sum/")).items
                    assert int(a.value) + int(b.value) == 100
                    assert a.revision == b.revision
                    reads += 1
                    await asyncio.sleep(0)
                return reads

            reader = asyncio.create_task(read())
            await asyncio.gather(*(move(amount) for amount in range(1, 16)))
            done.set()
            assert await reader > 0
            a, b = (await coordinator.range("sum/")).items
            assert (a.value, b.value) == (b"-70", b"170")

    async def test_what_changes_nothing_has_no_revision(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: deleting an absent key, or changing nothing at all, is applied without a trace."""
        async with coordinator_factory() as coordinator:
            first = await put(coordinator, "a")
            async with coordinator.watch("", after=first) as events:
                for changes in ([], [Delete("b")], [Delete("b"), Delete("c")]):
                    outcome = await coordinator.transact(changes)
                    assert outcome.applied
                    assert outcome.revision >= first
                last = await put(coordinator, "a")
                assert await next_of(events) == (WatchEvent("a", b"", last),)

    async def test_bad_input_changes_nothing(self, coordinator_factory: CoordinatorFactory) -> None:
        """R: what passes a limit, or names a key twice, is refused before anything is done."""
        async with coordinator_factory() as coordinator:
            good = Put("good", b"")
            bad: list[list[Change]] = [
                [good, Put("good", b"2")],
                [good, Delete("good")],
                [Delete("b"), Delete("b")],
                [good, Put("", b"")],
                [good, Put("k" * (KEY_BYTES_MAX + 1), b"")],
                [good, Put("é" * (KEY_BYTES_MAX // 2 + 1), b"")],
                [good, Put("\ud800", b"")],
                [good, Put("big", bytes(VALUE_BYTES_MAX + 1))],
                [good, Put("big", bytes(VALUE_BYTES_MAX)), Put("more", bytes(VALUE_BYTES_MAX))],
                [Put(f"{number}", b"") for number in range(TRANSACTION_CHANGES_MAX + 1)],
            ]
            for changes in bad:
                with pytest.raises(InvalidInput):
                    await coordinator.transact(changes)
            conditions = [Unchanged("a", ABSENT)] * (TRANSACTION_CHANGES_MAX + 1)
            with pytest.raises(InvalidInput):
                await coordinator.transact([good], conditions=conditions)
            with pytest.raises(InvalidInput):
                await coordinator.get("")
            for ttl_ms in (0, -1, LEASE_TTL_MS_MAX + 1):
                with pytest.raises(InvalidInput):
                    await coordinator.grant(ttl_ms=ttl_ms)
            assert (await coordinator.range("")).items == ()

    async def test_the_limits_themselves_are_allowed(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """R: the longest key, the largest value and the largest transaction pass."""
        async with coordinator_factory() as coordinator:
            key, value = "k" * KEY_BYTES_MAX, bytes(range(256)) * (VALUE_BYTES_MAX // 256)
            await put(coordinator, key, value)
            item = await coordinator.get(key)
            assert item is not None
            assert item.value == value
            many = [Put(f"many/{number:03}", b"") for number in range(TRANSACTION_CHANGES_MAX)]
            assert (await coordinator.transact(many)).applied
            assert len((await coordinator.range("many/")).items) == TRANSACTION_CHANGES_MAX

    # ---- watches

    async def test_a_watch_tells_each_revision_whole(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: one tuple a revision, with the keys below the prefix and nothing else."""
        async with coordinator_factory() as coordinator:
            start = (await coordinator.range("")).revision
            async with coordinator.watch("t/", after=start) as events:
                first = await coordinator.transact(
                    [Put("t/a", b"1"), Put("u", b""), Put("t/b", b"2")]
                )
                await put(coordinator, "u")
                second = await coordinator.transact(
                    [Delete("t/a"), Put("t/b", b"3"), Delete("t/x")]
                )
                assert set(await next_of(events)) == {
                    WatchEvent("t/a", b"1", first.revision),
                    WatchEvent("t/b", b"2", first.revision),
                }
                assert set(await next_of(events)) == {
                    WatchEvent("t/a", None, second.revision),
                    WatchEvent("t/b", b"3", second.revision),
                }

    async def test_a_watch_replays_and_goes_on_without_gap_or_duplicate(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: watches begun at any time amid concurrent writes tell all after their revision."""
        async with coordinator_factory() as coordinator:
            start = (await coordinator.range("")).revision
            written: dict[Revision, WatchEvent] = {}
            half = asyncio.Event()

            async def write(writer: int) -> None:
                for number in range(30):
                    key, value = f"w/{writer}", str(number).encode()
                    revision = await put(coordinator, key, value)
                    written[revision] = WatchEvent(key, value, revision)
                    if len(written) >= 60:
                        half.set()

            async def follow(after: Revision) -> list[Events]:
                async with coordinator.watch("w/", after=after) as events:
                    taken = [await next_of(events)]
                    while taken[-1][0].key != "w/end":
                        taken.append(await next_of(events))
                return taken

            followers = {start: asyncio.create_task(follow(start))}
            writers = [asyncio.create_task(write(writer)) for writer in range(5)]
            async with asyncio.timeout(DEADLINE_S):
                await half.wait()
            for after in (sorted(written)[20], sorted(written)[59]):
                followers[after] = asyncio.create_task(follow(after))
            await asyncio.gather(*writers)
            last = await put(coordinator, "w/end")
            written[last] = WatchEvent("w/end", b"", last)
            for after, follower in followers.items():
                expected = [(written[each],) for each in sorted(written) if each > after]
                assert await follower == expected

    async def test_range_then_watch_sees_exactly_the_rest(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: a snapshot and the events after its revision give the state, at any time."""
        async with coordinator_factory() as coordinator:

            async def write(writer: int) -> None:
                for number in range(25):
                    key = f"s/{(writer + number) % 7}"
                    change = Delete(key) if number % 3 == 2 else Put(key, f"{writer}".encode())
                    await coordinator.transact([change, Put(f"s/{writer}-", b"%d" % number)])

            writers = [asyncio.create_task(write(writer)) for writer in range(4)]
            snapshots = []
            while not all(writer.done() for writer in writers):
                snapshots.append(await coordinator.range("s/"))
                await asyncio.sleep(0)
            await asyncio.gather(*writers)
            end = await put(coordinator, "s/end")
            final = {item.key: item.value for item in (await coordinator.range("s/")).items}
            assert len(snapshots) > 1
            for snapshot in snapshots[:: max(1, len(snapshots) // 20)]:
                async with coordinator.watch("s/", after=snapshot.revision) as events:
                    rest = await take(events, until=end)
                state = {item.key: item.value for item in snapshot.items}
                assert replay(state, rest) == final

    # ---- leases

    async def test_an_ended_lease_takes_its_keys_in_one_revision(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: a lease that is not kept alive ends after its time, and watchers see it at once."""
        async with coordinator_factory() as coordinator:
            granted_at = time.monotonic()
            lease = await coordinator.grant(ttl_ms=self.lease_ttl_ms)
            written = await coordinator.transact(
                [Put("n/1", b"", lease), Put("n/2", b"", lease), Put("n/3", b"")]
            )
            item = await coordinator.get("n/1")
            assert item is not None
            assert item.lease == lease
            async with coordinator.watch("n/", after=written.revision) as events:
                gone = await next_of(events)
            assert time.monotonic() - granted_at >= self.lease_ttl_ms / 1000
            assert {(event.key, event.value) for event in gone} == {("n/1", None), ("n/2", None)}
            assert len({event.revision for event in gone}) == 1
            assert [item.key for item in (await coordinator.range("n/")).items] == ["n/3"]
            with pytest.raises(LeaseLost):
                await coordinator.keep_alive(lease)
            with pytest.raises(LeaseLost):
                await coordinator.transact([Put("n/3", b"late"), Put("n/4", b"", lease)])
            await coordinator.revoke(lease)
            snapshot = await coordinator.range("n/")
            assert [(item.key, item.value) for item in snapshot.items] == [("n/3", b"")]

    async def test_keeping_a_lease_alive_holds_its_keys(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: a lease lives as long as it is kept alive, and ends when that stops."""
        async with coordinator_factory() as coordinator:
            lease = await coordinator.grant(ttl_ms=self.lease_ttl_ms)
            written = await coordinator.transact([Put("n/1", b"", lease)])
            async with coordinator.watch("n/", after=written.revision) as events:
                gone = asyncio.create_task(next_of(events))
                for _ in range(8):
                    await coordinator.keep_alive(lease)
                    done, _ = await asyncio.wait({gone}, timeout=self.lease_ttl_ms / 4000)
                    assert not done
                assert [(event.key, event.value) for event in await gone] == [("n/1", None)]

    async def test_revoking_a_lease_takes_its_keys_at_once(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: revoke ends the lease and its keys in one revision; doing it again is no error."""
        async with coordinator_factory() as coordinator:
            lease, other = [await coordinator.grant(ttl_ms=60_000) for _ in range(2)]
            assert lease != other
            written = await coordinator.transact(
                [Put("n/1", b"", lease), Put("n/2", b"", lease), Put("n/3", b"", other)]
            )
            async with coordinator.watch("n/", after=written.revision) as events:
                await coordinator.revoke(lease)
                await coordinator.revoke(lease)
                gone = await next_of(events)
            assert {(event.key, event.value) for event in gone} == {("n/1", None), ("n/2", None)}
            assert [item.key for item in (await coordinator.range("n/")).items] == ["n/3"]
            with pytest.raises(LeaseLost):
                await coordinator.keep_alive(lease)
            await coordinator.keep_alive(other)

    async def test_a_key_belongs_to_the_lease_of_its_last_write(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L1: writing a key with another lease, or with none, takes it from the one before."""
        async with coordinator_factory() as coordinator:
            first, second = [await coordinator.grant(ttl_ms=60_000) for _ in range(2)]
            await coordinator.transact([Put(f"n/{number}", b"", first) for number in range(4)])
            await coordinator.transact([Put("n/1", b"", second), Put("n/2", b""), Delete("n/3")])
            await coordinator.transact([Put("n/3", b"")])
            await coordinator.revoke(first)
            assert [(item.key, item.lease) for item in (await coordinator.range("n/")).items] == [
                ("n/1", second),
                ("n/2", None),
                ("n/3", None),
            ]
            await coordinator.revoke(second)
            assert [item.key for item in (await coordinator.range("n/")).items] == ["n/2", "n/3"]

    async def test_a_failed_condition_comes_before_a_lost_lease(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """L9: who lost the race is told so, whether or not its lease is still there."""
        async with coordinator_factory() as coordinator:
            lease = await coordinator.grant(ttl_ms=60_000)
            await coordinator.revoke(lease)
            await put(coordinator, "owner", b"other")
            claim = [Put("owner", b"me", lease)]
            outcome = await coordinator.transact(claim, conditions=[Unchanged("owner", ABSENT)])
            assert not outcome.applied

    # ---- the end

    async def test_after_closing_every_call_says_so(
        self, coordinator_factory: CoordinatorFactory
    ) -> None:
        """R: a closed coordinator answers `CoordinationDown`, also to watches that are open."""
        async with coordinator_factory() as coordinator:
            lease = await coordinator.grant(ttl_ms=60_000)
            start = await put(coordinator, "a")
            async with coordinator.watch("", after=start) as events:
                waiting = asyncio.create_task(next_of(events))
                await asyncio.sleep(0)
                await coordinator.close()
                await coordinator.close()
                with pytest.raises(CoordinationDown):
                    await waiting
            for call in (
                coordinator.get("a"),
                coordinator.range(""),
                coordinator.transact([Put("a", b"")]),
                coordinator.grant(ttl_ms=60_000),
                coordinator.keep_alive(lease),
                coordinator.revoke(lease),
            ):
                with pytest.raises(CoordinationDown):
                    await call
            with pytest.raises(CoordinationDown):
                async with coordinator.watch("", after=start) as events:
                    await next_of(events)
