"""The part of the conformance suite that compares with a model, on drawn operations."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.coordination.driving import CoordinatorFactory, Events, take

from dovetail.coordination import (
    ABSENT,
    Change,
    Coordinator,
    Delete,
    KeyValue,
    LeaseId,
    Put,
    Revision,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import LeaseLost

KEYS = st.sampled_from(["a", "a/", "a/b", "b", "bÿ", "€", "😀/x"])
VALUES = st.binary(max_size=8)
#: A key, a value (None: delete it), and which of the leases granted so far it is bound to.
CHANGES = st.lists(
    st.tuples(KEYS, st.none() | VALUES, st.none() | st.integers(0, 3)),
    max_size=3,
    unique_by=lambda change: change[0],
)
#: A key, and whether the revision named is its own.
CONDITIONS = st.lists(st.tuples(KEYS, st.booleans()), max_size=2)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("transact"), CHANGES, CONDITIONS),
        st.tuples(st.just("grant")),
        st.tuples(st.just("revoke"), st.integers(0, 3)),
    ),
    max_size=25,
)


@dataclass(slots=True)
class Model:
    """The protocol in its plainest form."""

    revision: Revision
    items: dict[str, KeyValue] = field(default_factory=dict)
    leases: list[LeaseId] = field(default_factory=list)
    ended: set[LeaseId] = field(default_factory=set)
    events: list[Events] = field(default_factory=list)

    def lease(self, index: int | None) -> LeaseId | None:
        return None if index is None or not self.leases else self.leases[index % len(self.leases)]

    def revision_of(self, key: str) -> Revision:
        return self.items[key].revision if key in self.items else ABSENT

    def holds(self, conditions: Sequence[Unchanged]) -> bool:
        return all(self.revision_of(each.key) == each.revision for each in conditions)

    def changes_something(self, changes: Sequence[Change]) -> bool:
        return any(isinstance(each, Put) or each.key in self.items for each in changes)

    def apply(self, changes: Sequence[Change], revision: Revision) -> None:
        events = []
        for change in changes:
            if isinstance(change, Put):
                before = self.items.get(change.key)
                created = revision if before is None else before.created
                item = KeyValue(change.key, change.value, revision, created, change.lease)
                self.items[change.key] = item
                events.append(WatchEvent(change.key, change.value, revision))
            elif self.items.pop(change.key, None) is not None:
                events.append(WatchEvent(change.key, None, revision))
        self.revision = revision
        self.events.append(tuple(events))

    def end(self, lease: LeaseId) -> list[Change]:
        self.ended.add(lease)
        return [Delete(item.key) for item in self.items.values() if item.lease == lease]


async def run_transaction(
    coordinator: Coordinator,
    model: Model,
    wanted: Sequence[tuple[str, bytes | None, int | None]],
    guards: Sequence[tuple[str, bool]],
) -> None:
    """Runs one drawn transaction on both and compares what they say."""
    changes = [
        Delete(key) if value is None else Put(key, value, model.lease(lease))
        for key, value, lease in wanted
    ]
    conditions = [
        Unchanged(key, model.revision_of(key) if right else Revision(model.revision + 1000))
        for key, right in guards
    ]
    leases = {change.lease for change in changes if isinstance(change, Put)}
    if not model.holds(conditions):
        outcome = await coordinator.transact(changes, conditions=conditions)
        assert not outcome.applied
    elif leases & model.ended:
        with pytest.raises(LeaseLost):
            await coordinator.transact(changes, conditions=conditions)
    else:
        outcome = await coordinator.transact(changes, conditions=conditions)
        assert outcome.applied
        if model.changes_something(changes):
            assert outcome.revision > model.revision
            model.apply(changes, outcome.revision)


async def run_revoke(coordinator: Coordinator, model: Model, lease: LeaseId) -> None:
    """Ends a lease on both."""
    await coordinator.revoke(lease)
    changes = model.end(lease)
    if changes:
        model.apply(changes, (await coordinator.range("")).revision)


class ModelConformance:
    """Any sequence of operations, one after the other."""

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(operations=OPERATIONS)
    async def test_any_sequence_behaves_like_the_model(
        self, coordinator_factory: CoordinatorFactory, operations: Sequence[tuple[object, ...]]
    ) -> None:
        """L1, L9: state, revisions and events equal those of the plainest model."""
        async with coordinator_factory() as coordinator:
            start = (await coordinator.range("")).revision
            model = Model(revision=start)
            for operation in operations:
                match operation:
                    case ("transact", list(wanted), list(guards)):
                        await run_transaction(coordinator, model, wanted, guards)
                    case ("grant",):
                        model.leases.append(await coordinator.grant(ttl_ms=60_000))
                    case ("revoke", int(index)):
                        lease = model.lease(index)
                        if lease is not None:
                            await run_revoke(coordinator, model, lease)
                items = tuple(sorted(model.items.values(), key=lambda item: item.key.encode()))
                assert (await coordinator.range("")).items == items
            for key in ("a", "a/", "b"):
                assert await coordinator.get(key) == model.items.get(key)
            if model.events:
                async with coordinator.watch("", after=start) as events:
                    seen = await take(events, until=model.revision)
                assert [set(each) for each in seen] == [set(each) for each in model.events]
