"""Record batches that are wrong, each in one field, and some that are only strange."""

import random
import zlib

import cramjam
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.hostile_client import (
    FIELDS,
    FUZZ_CASES,
    KNOWN,
    KNOWN_PARTITIONS,
    PREY,
    REQUEST_ERRORS,
    Caller,
    Watch,
    batch,
    fetched,
    forged,
    offset_at,
    produce_request,
)

from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.log.groups.partition_journal import GROUPS_TOPIC

_GOOD = batch()
_INVALID = ErrorCode.INVALID_RECORD

_WRONG: dict[str, tuple[bytes | None, ErrorCode]] = {
    "no records": (None, _INVALID),
    "nothing": (b"", _INVALID),
    "half a header": (_GOOD[:30], _INVALID),
    "a header alone": (_GOOD[:61], _INVALID),
    "cut off": (_GOOD[:-1], _INVALID),
    "one byte too many": (_GOOD + b"\0", _INVALID),
    "two batches": (_GOOD * 2, _INVALID),
    "length too small": (forged(_GOOD, length=49), _INVALID),
    "length negative": (forged(_GOOD, length=-1), _INVALID),
    "length enormous": (forged(_GOOD, length=2**31 - 1), _INVALID),
    "format 0": (forged(_GOOD, magic=0), _INVALID),
    "format 1": (forged(_GOOD, magic=1), _INVALID),
    "format 3": (forged(_GOOD, magic=3), _INVALID),
    "format negative": (forged(_GOOD, magic=-1), _INVALID),
    "checksum wrong": (forged(_GOOD, checksum=0), ErrorCode.CORRUPT_MESSAGE),
    "a bit flipped": (
        forged(_GOOD, mend_checksum=False, base_timestamp=5),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "codec 5": (forged(_GOOD, attributes=5), _INVALID),
    "codec 7": (forged(_GOOD, attributes=7), _INVALID),
    "transactional": (forged(_GOOD, attributes=0x10), _INVALID),
    "control": (forged(_GOOD, attributes=0x20), _INVALID),
    "no records counted": (forged(_GOOD, record_count=0, last_offset_delta=-1), _INVALID),
    "count negative": (forged(_GOOD, record_count=-3, last_offset_delta=-4), _INVALID),
    "count enormous": (forged(_GOOD, record_count=2**31 - 1), _INVALID),
    "delta too large": (forged(_GOOD, last_offset_delta=2**31 - 1), _INVALID),
    "delta too small": (forged(_GOOD, last_offset_delta=1), _INVALID),
    "delta negative": (forged(_GOOD, last_offset_delta=-1), _INVALID),
    "producer without sequence": (forged(_GOOD, producer_id=1, producer_epoch=0), _INVALID),
    "producer without epoch": (forged(_GOOD, producer_id=1, base_sequence=0), _INVALID),
    "garbage for records": (forged(_GOOD[:61] + b"\xff" * (len(_GOOD) - 61)), _INVALID),
    "zeros for records": (forged(_GOOD[:61] + bytes(len(_GOOD) - 61)), _INVALID),
    "fewer records than counted": (forged(_GOOD, record_count=4, last_offset_delta=3), _INVALID),
    "more records than counted": (forged(_GOOD, record_count=2, last_offset_delta=1), _INVALID),
    "huge": (batch(1, bytes(2 << 20)), ErrorCode.MESSAGE_TOO_LARGE),
}


def test_wrong_batches(watch: Watch) -> None:
    """K2, R3, U7: a wrong batch gets Kafka's code and a message, and nothing of it is stored."""
    outcomes = {}
    with watch.undisturbed(counter=REQUEST_ERRORS), Caller(watch.node) as caller:
        for name, (records, _) in _WRONG.items():
            outcome = caller.produce(KNOWN, records)
            outcomes[name] = (ErrorCode(outcome.error_code), outcome.base_offset)
            assert outcome.error_message, name
    assert outcomes == {name: (code, -1) for name, (_, code) in _WRONG.items()}


@pytest.mark.parametrize("wrong", ["place", "batch"])
def test_errors_nobody_waits_for(watch: Watch, wrong: str) -> None:
    """F12: with acks 0 an error closes the connection, so that the client asks anew."""
    place = (KNOWN, KNOWN_PARTITIONS) if wrong == "place" else (KNOWN, 0)
    records = _GOOD if wrong == "place" else _GOOD[:-1]
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "quick")
    with watch.undisturbed(counter=REQUEST_ERRORS), Caller(watch.node, timeout_s=5) as caller:
        request = produce_request(place[0], records, partition=place[1], acks=0)
        caller.send(b"".join(encode_request(header, request)))
        assert caller.closed_by_node()


def test_wrong_places(watch: Watch) -> None:
    """R3, U7: a good batch for a place that is not there gets Kafka's code and a message."""
    places = [("nowhere", 0), (KNOWN, -1), (KNOWN, 2), (KNOWN, 2**31 - 1), ("", 0), ("\0", 0)]
    with watch.undisturbed(counter=REQUEST_ERRORS), Caller(watch.node) as caller:
        for topic, partition in places:
            outcome = caller.produce(topic, _GOOD, partition=partition)
            assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert outcome.error_message


def test_internal_topic(watch: Watch) -> None:
    """R3: nobody writes to the node's own journal."""
    with watch.undisturbed(counter=REQUEST_ERRORS), Caller(watch.node) as caller:
        outcome = caller.produce(GROUPS_TOPIC, _GOOD)
        assert outcome.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "internal" in outcome.error_message


@settings(
    max_examples=FUZZ_CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def _attack(watch: Watch, data: st.DataObject) -> None:
    """A batch with random values in some fields; all places of time are then asked for."""
    numbers = {">b": 7, ">h": 15, ">i": 31, ">I": 31, ">q": 63}
    fields = {}
    for name in data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3)):
        bits = numbers[FIELDS[name][1]]
        low, high = (0 if name == "checksum" else -(1 << bits)), (1 << bits) - 1
        fields[name] = data.draw(st.sampled_from([low, -low, 0, 1, high]) | st.integers(low, high))
        fields[name] = max(low, min(high, fields[name]))
    records = bytearray(forged(_GOOD, **fields))
    if data.draw(st.booleans()):
        records[data.draw(st.integers(61, len(records) - 1))] = data.draw(st.integers(0, 255))
        records = bytearray(forged(bytes(records)))
    with Caller(watch.node) as caller:
        outcome = caller.produce(PREY, bytes(records))
        ErrorCode(outcome.error_code)
        if outcome.error_code == 0:
            for timestamp in (-3, 0, 1_700_000_000_000, 2**63 - 1):
                offset_at(caller, PREY, 0, timestamp)


def test_random_fields(watch: Watch) -> None:
    """R3: whatever a batch's header says, it is stored or refused; asking by time survives it."""
    with watch.undisturbed(counter=REQUEST_ERRORS):
        _attack(watch)


def compressed(codec: int, plain: bytes) -> bytes:
    if codec == 1:
        deflater = zlib.compressobj(wbits=31)
        return deflater.compress(plain) + deflater.flush()
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(plain))
    return bytes(cramjam.lz4.compress(plain) if codec == 3 else cramjam.zstd.compress(plain))


def carrying(codec: int, body: bytes, **fields: int) -> bytes:
    """A batch of one record whose body is these bytes."""
    header = batch(1)[:61]
    made = header + body
    return forged(made, length=len(made) - 12, attributes=codec, **fields)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bodies_that_do_not_inflate(watch: Watch, codec: int) -> None:
    """F13, R3: a body that is no body of its codec, or of no records, is refused."""
    chooser = random.Random(codec)
    whole = compressed(codec, batch()[61:] * 100)
    bodies = [b"", b"\0", chooser.randbytes(300), whole[: len(whole) // 2], whole + b"\xff" * 9]
    bodies += [compressed(codec, plain) for plain in (b"", chooser.randbytes(300))]
    with Caller(watch.node) as caller:
        for body in bodies:
            outcome = caller.produce(PREY, carrying(codec, body, timestamp_max=2**60))
            assert outcome.error_code == _INVALID
            assert outcome.error_message
        body = compressed(codec, batch(1)[61:])
        outcome = caller.produce(PREY, carrying(codec, body, timestamp_max=2**60))
        assert outcome.error_code == 0
        assert offset_at(caller, PREY, 0, 2**60).error_code == 0
        assert fetched(caller, PREY, 0, offset=outcome.base_offset)[61:] == body
    watch.serve_well()
