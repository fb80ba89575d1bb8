"""One grammar for a position in a partition."""

import socket
from unittest.mock import patch

import pytest

from dovetail.addresses import Address
from dovetail.admin import kafka as admin_kafka
from dovetail.admin.kafka import Kafka, Metadata, PartitionMetadata
from dovetail.admin.positions import NUMBER_MAX, Position, bounds_of, parse_position
from dovetail.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position("beginning")),
        ("Earliest", Position("beginning")),
        ("end", Position("end")),
        ("latest", Position("end")),
        ("1200", Position("offset", 1200)),
        ("offset:12", Position("offset", 12)),
        (f"offset:{NUMBER_MAX}", Position("offset", NUMBER_MAX)),
        ("time:1700000000000", Position("time", 1_700_000_000_000)),
        ("time:2023-11-14T22:13:20Z", Position("time", 1_700_000_000_000)),
        ("1970-01-01T00:00:01Z", Position("time", 1000)),
        ("1970-01-01T02:00:01.5+02:00", Position("time", 1500)),
    ],
)
def test_positions(text: str, position: Position) -> None:
    """U4, U5: a position is a word, an offset or a time; everywhere the same."""
    assert parse_position(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1.5",
        "tomorrow",
        "0001-01-01T00:00+14:00x",
        "offset:",
        "offset:-1",
        "offset:1e9",
        f"offset:{NUMBER_MAX + 1}",
        "time:soon",
        "²",
    ],
)
def test_what_is_not_a_position_is_refused(text: str) -> None:
    """U7: the error shows how to write each kind."""
    with pytest.raises(InvalidInput, match=r"beginning, end, an offset .*offset:1200.* or a time"):
        parse_position(text)


def test_a_leader_that_does_not_answer_is_left_out() -> None:
    """R7, U7: a broker that takes the request and stays silent costs two time limits, no more.

    librdkafka's ListOffsets ended the whole process here, a node's with it: a page of the console
    asks for the bounds of every partition.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        metadata = Metadata({1: address}, {"t": (PartitionMetadata(0, 1, (1,)),)})
        kafka = Kafka(str(address), 5.0, "test")
        with (
            patch.object(admin_kafka, "ANSWER_S_MAX", 0.1),
            patch.object(Kafka, "metadata", lambda _, *topics: metadata),
        ):
            assert bounds_of(kafka, [("t", 0)]) == {}
        kafka.close()
