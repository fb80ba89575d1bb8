"""Work on topics that overlaps on one broker."""

import pytest
from tests.unit.log.conftest import Bench

from dovetail.log.topic import TopicRecord


async def test_a_topic_is_deleted_before_its_creation_has_returned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3, B4: it was ready, so it can be deleted; whoever made it still gets an answer."""
    work = bench.log._work
    create = work._create

    async def slow(record: TopicRecord) -> TopicRecord:
        ready = await create(record)
        await bench.log.delete_topic(record.name)
        await bench.log.deletions_done()
        return ready

    monkeypatch.setattr(work, "_create", slow)
    made = await bench.log.create_topic("short", partitions=2)
    assert made.name == "short"
    assert not work._working
    assert [topic.name for topic in bench.log.topics() if topic.name == "short"] == []
    monkeypatch.undo()
    again = await bench.log.create_topic("short", partitions=1)
    assert again.id != made.id
