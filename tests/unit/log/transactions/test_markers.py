"""Markers on their way: which answers of an owner end the sending."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dovetail.clock import ManualClock
from dovetail.errors import DovetailError, Fenced, NotOwner, ProducerFenced, Unavailable
from dovetail.log.producers import ProducerTable
from dovetail.log.service import Log
from dovetail.log.transactions.brokers import NoOthers, Outcomes
from dovetail.log.transactions.markers import Markers
from dovetail.log.transactions.types import Place
from dovetail.record_batch import Marker, build_marker, read_header

PLACE = Place("t", 0)
MARKER = Marker(7, 2, True, 1, 5)


class Others(NoOthers):
    """Another broker that answers every marker with one error."""

    def __init__(self, answer: DovetailError | None) -> None:
        self._answer = answer

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        return [self._answer for _ in places]


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        (None, True),
        (ProducerFenced("a later epoch is known"), True),
        (Fenced("a later term is known"), False),
        (NotOwner("elsewhere"), False),
        (Unavailable("later"), False),
    ],
)
async def test_a_partition_that_knows_a_later_epoch_needs_no_marker(
    answer: DovetailError | None, done: bool
) -> None:
    """K8: a forged batch of a high epoch must not keep a transactional id busy for ever."""
    log: Any = SimpleNamespace(
        topic=lambda _: SimpleNamespace(partitions=1),
        ownership=lambda *_: SimpleNamespace(owner=2),
    )
    markers = Markers(1, cast(Log, log), cast(Any, None), Others(answer), ManualClock())
    assert await markers.send(MARKER, [PLACE]) == ({PLACE} if done else set())


def test_what_is_open_has_the_epoch_that_is_known() -> None:
    """K8: so a marker that is refused for its epoch has nothing to end there."""
    table = ProducerTable()
    table.admit(7, 3, 6)
    batch = read_header(build_marker(MARKER._replace(producer_epoch=3), timestamp=1))
    table.note(batch._replace(attributes=16, base_sequence=0), now_ms=1)
    with pytest.raises(ProducerFenced):
        table.duplicate_of(batch._replace(producer_epoch=2), now_ms=1, marker=MARKER)
    assert table.is_open(7, 3)
