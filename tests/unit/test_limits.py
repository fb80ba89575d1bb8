"""Every setting at its ends and beyond them, from one table (R8)."""

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.limits import LIMITS, Ends, node_settings, topic_settings

from dovetail.errors import DiskFull, InvalidInput, InvalidSetting, Uncertain
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage
from dovetail.log.topic import check_config
from dovetail.log.topic_settings import CONFIG_KEYS
from dovetail.node import Node
from dovetail.record_batch import check_batch, decode_batch, encode_batch
from dovetail.settings import Flag, Settings, load_settings

#: Settings whose largest value needs other settings, or other machines, beside it.
_ALONE = {
    "log.ensemble": 1,
    "log.write_quorum": 1,
    "log.ack_quorum": 1,
    "storage.disk_free_bytes_min": 0,
    # Each is a partition that is claimed at start: 1000 take four seconds.
    "groups.partitions": 20,
    "kafka.port": 0,
    "kafka.advertised_port": 0,
    "http.port": 0,
    "http.enabled": False,
}


def given(folder: Path, values: dict[str, object]) -> Settings:
    flags = tuple(Flag(name, value, name) for name, value in values.items())
    return load_settings(flags=flags, environment={}, folder=folder)


@pytest.mark.parametrize("ends", node_settings(), ids=str)
def test_a_setting_of_a_node_takes_what_is_within_its_ends(ends: Ends, tmp_path: Path) -> None:
    """R8: both ends, one beyond each, -1, 0 and numbers that no word holds."""
    assert ends.smallest is not None, "everything has a limit"
    assert ends.largest is not None, "everything has a limit"
    for value in ends.tried():
        try:
            settings = given(tmp_path, {ends.name: value})
        except InvalidSetting as error:
            assert ends.name.partition(".")[2] in str(error)
            contradicts = "contradict" in str(error)
            assert contradicts or not ends.fits(value), f"{value}: {error}"
        else:
            shown = {one.name: one.value for one in settings.shown()}
            assert ends.fits(value), value
            assert shown[ends.name] == value


@pytest.mark.parametrize("ends", topic_settings(), ids=str)
def test_a_setting_of_a_topic_takes_what_is_within_its_ends(ends: Ends) -> None:
    """R8: as for nodes; what is refused names the setting."""
    also = CONFIG_KEYS[ends.name].also
    for value in ends.tried():
        if ends.fits(value) or value == also:
            assert check_config({ends.name: f" {value} "}) == {ends.name: str(value)}
        else:
            with pytest.raises(InvalidInput, match=ends.name):
                check_config({ends.name: str(value)})


@pytest.mark.parametrize(("check", "inside", "outside"), LIMITS.values(), ids=LIMITS.keys())
def test_a_documented_limit_is_where_the_documents_say(
    check: Callable[[object], None], inside: list[object], outside: list[object]
) -> None:
    """R8: at the limit, and beyond it."""
    for value in inside:
        check(value)
    for value in outside:
        with pytest.raises(InvalidInput):
            check(value)


async def append(partition: Partition, value: bytes) -> int:
    raw = memoryview(encode_batch([(None, value)], timestamp=1))
    header = check_batch(raw, bytes_max=partition.config.batch_bytes_max)
    return (await partition.append(raw, header)).base_offset


async def life(settings: Settings, offset: int) -> None:
    """A node that takes one more record and reads all that it has."""
    async with Node(settings) as node:
        assert node._broker is not None
        log = node._broker.log
        if not offset:
            await log.create_topic("t", partitions=1, config={"retention.ms": "-1"})
        partition = log.partition("t", 0)
        assert await append(partition, b"%d" % offset) == offset
        partition.roll()
        await log.maintain()
        assert node.ready() == (True, [])
        found: list[bytes | None] = []
        while len(found) <= offset:
            for batch in await read_from_storage(partition, len(found), 1000):
                found += [record.value for record in decode_batch(batch)]
        assert found == [b"%d" % n for n in range(offset + 1)]


@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_a_node_works_with_all_settings_at_one_end(end: str, tmp_path: Path) -> None:
    """R8: it stores, rolls, reads, and does so after a restart there."""
    values = {ends.name: getattr(ends, end) for ends in node_settings()}
    settings = given(tmp_path, {**values, **_ALONE, "node.data_dir": tmp_path / "data"})
    for offset in range(2):
        asyncio.run(life(settings, offset))


def test_a_node_that_must_keep_more_free_than_there_is_refuses_clearly(tmp_path: Path) -> None:
    """R8, L6: at the largest reserve nothing is stored, and the client hears why."""
    values = {**_ALONE, "storage.disk_free_bytes_min": 2**40, "node.data_dir": tmp_path / "data"}
    with pytest.raises((DiskFull, Uncertain), match="bytes free on the disk"):
        asyncio.run(life(given(tmp_path, values), 0))


def ends_of_topics() -> list[dict[str, str]]:
    """Topics with one setting at an end each."""
    return [
        {ends.name: str(value)}
        for ends in topic_settings()
        for value in (ends.smallest, ends.largest)
        if not ends.name.startswith("dovetail.") and CONFIG_KEYS[ends.name].effective
    ]


def test_a_topic_works_with_each_setting_at_its_ends(tmp_path: Path) -> None:
    """R8, K12: it takes what its size admits, keeps what it must, also after a restart there."""
    base = {**_ALONE, "node.data_dir": tmp_path / "data", "log.partitions_default": 1}
    settings = given(tmp_path, base)
    topics = [config for config in ends_of_topics() if _can_be(config)]
    asyncio.run(serve_topics(settings, topics, first=True))
    asyncio.run(serve_topics(settings, topics, first=False))


def _can_be(config: dict[str, str]) -> bool:
    """Whether it contradicts nothing at its default."""
    try:
        check_config(config, None)
    except InvalidInput:
        return False
    return True


async def serve_topics(settings: Settings, topics: list[dict[str, str]], *, first: bool) -> None:
    async with Node(settings) as node:
        assert node._broker is not None
        log = node._broker.log
        for number, config in enumerate(topics):
            name = f"t{number}"
            if first:
                await log.create_topic(name, partitions=1, config=config)
            partition = log.partition(name, 0)
            if partition.config.batch_bytes_max >= 100:
                await append(partition, b"v")
                assert partition.high_watermark > 0, config
            partition.roll()
        for _ in range(2):
            await log.maintain()
        for number, config in enumerate(topics):
            partition = log.partition(f"t{number}", 0)
            kept = partition.high_watermark - partition.log_start
            if config.get("retention.ms") == "-1" or config.get("retention.bytes") == "-1":
                assert kept == partition.high_watermark, config
        assert node.ready() == (True, [])


@pytest.mark.parametrize("size", [1024, 1025])
def test_a_batch_of_the_largest_size_is_taken_and_one_byte_more_is_not(size: int) -> None:
    """R8, K12: `max.message.bytes` counts the whole batch."""
    empty = len(encode_batch([(None, b"")], timestamp=1))
    value = b"v" * (size - empty - 2)  # The lengths of record and value take a byte more each.
    raw = memoryview(encode_batch([(None, value)], timestamp=1))
    assert len(raw) == size
    if size > 1024:
        with pytest.raises(InvalidInput, match="1024"):
            check_batch(raw, bytes_max=1024)
    else:
        assert check_batch(raw, bytes_max=1024).record_count == 1
    assert struct.unpack_from(">i", raw, 8)[0] == size - 12
