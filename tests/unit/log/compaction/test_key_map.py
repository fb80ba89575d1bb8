"""The map of keys: the compiled one does what the plain one does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.log.compaction import key_map
from dovetail.log.compaction.key_map import PlainKeyMap
from dovetail.record_batch import HEADER_BYTES, NewRecord, build_batch

SECRET = b"0123456789abcdef"

RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.integers(0, 1 << 45),
        st.none() | st.sampled_from([b"", b"a", b"b", b"c" * 7, b"d" * 8, b"e" * 300]),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    if not key_map.COMPILED:
        pytest.skip("no compiler was there")


@given(RECORDS, st.integers(1, 5), st.integers(0, 12), st.integers(0, 25), st.booleans())
def test_compiled_and_plain_agree(
    records: list[NewRecord], keys_max: int, first: int, end: int, stay: bool
) -> None:
    """L17: what is put, judged and copied, also where the map is full and times are shifted."""
    batch = build_batch(records)
    where = (batch, HEADER_BYTES, len(records), 10)
    maps = [PlainKeyMap(keys_max, SECRET), key_map.KeyMap(keys_max, SECRET)]
    full = [made.put(*where, first + 10) for made in maps]
    assert full[0] == full[1]
    assert len(maps[0]) == len(maps[1])
    assert maps[0].judge(*where, end, stay) == maps[1].judge(*where, end, stay)
    for shift in (0, 1, -5, -(1 << 44), 1 << 62, -(1 << 63)):
        assert maps[0].copy(*where, end, stay, shift) == maps[1].copy(*where, end, stay, shift)


@given(RECORDS, st.integers(0, 400), st.integers(0, 255), st.integers(0, 1 << 40))
def test_garbage_is_refused_by_both(
    records: list[NewRecord], at: int, byte: int, count: int
) -> None:
    """L17: bytes that are no records raise, and none is read behind the end."""
    batch = bytearray(build_batch(records))
    batch[HEADER_BYTES + at % (len(batch) - HEADER_BYTES)] = byte
    outcomes = []
    for made in (PlainKeyMap(100, SECRET), key_map.KeyMap(100, SECRET)):
        try:
            outcomes.append(made.put(bytes(batch), HEADER_BYTES, min(count, 20), 0, 0))
        except ValueError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


def test_a_million_keys_are_each_found() -> None:
    """L17: none passes for another, and a full map says where it was full."""
    made = key_map.KeyMap(100_000, SECRET)
    for at in range(0, 100_000, 1000):
        batch = build_batch([NewRecord(0, b"%d" % (at + n), b"v") for n in range(1000)])
        assert made.put(batch, HEADER_BYTES, 1000, at, 0) == -1
    assert len(made) == 100_000
    for at in range(0, 100_000, 1000):
        batch = build_batch([NewRecord(0, b"%d" % (at + n), b"v") for n in range(1000)])
        assert made.judge(batch, HEADER_BYTES, 1000, at, 1 << 40, True)[0] == 1000
        assert made.judge(batch, HEADER_BYTES, 1000, at - 1, 1 << 40, True)[0] == 0
    batch = build_batch([NewRecord(0, key, b"v") for key in (b"0", b"new", b"1")])
    assert made.put(batch, HEADER_BYTES, 3, 200_000, 0) == 200_001


@pytest.mark.parametrize(("keys", "secret"), [(0, SECRET), (1 << 41, SECRET), (1, b"short")])
def test_a_map_of_no_size_is_refused(keys: int, secret: bytes) -> None:
    """L17: at once, before memory is asked for."""
    for made in (PlainKeyMap, key_map.KeyMap):
        with pytest.raises(ValueError, match="secret"):
            made(keys, secret)
