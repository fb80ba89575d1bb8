"""What consumers of the classic protocol say of themselves, and what they are assigned."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from dovetail.kafka.codec.subscription import ConsumerFormats, topics_of

FORMATS = ConsumerFormats()
PARTS = st.frozensets(st.tuples(st.sampled_from(["a", "b", "naïve"]), st.integers(0, 9)))


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def written(version: int, topics: list[str], data: bytes | None, owned: bytes) -> bytes:
    """A subscription as clients write it; `owned` is what an assignment has between its ends."""
    user_data = struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    named = struct.pack(">i", len(topics)) + b"".join(map(text, topics))
    return struct.pack(">h", version) + named + user_data + owned


@given(
    st.integers(0, 3),
    st.lists(st.sampled_from(["a", "naïve", ""]), unique=True),
    st.none() | st.binary(max_size=9),
    PARTS,
)
def test_subscriptions_are_read(
    version: int, topics: list[str], data: bytes | None, owned: frozenset[tuple[str, int]]
) -> None:
    """K9: whatever the user data; before version 1 a member does not say what it has."""
    behind = FORMATS.assignment(owned)[2:-4] if version else b""
    metadata = written(version, topics, data, behind + (b"later fields" if version > 1 else b""))
    found = FORMATS.subscription(metadata)
    assert found == (frozenset(topics), owned if version else frozenset())
    assert topics_of("consumer", metadata) == frozenset(topics)
    assert topics_of("connect", metadata) is None


@given(PARTS)
def test_assignments_are_read_back(parts: frozenset[tuple[str, int]]) -> None:
    """K9: what a member is told is what it had, when the group moves."""
    assert FORMATS.assigned(FORMATS.assignment(parts)) == parts


@given(st.binary(max_size=60))
def test_other_bytes_are_something_else(data: bytes) -> None:
    """K9, R3: whatever they are, nothing is raised, and no memory taken for what they promise."""
    FORMATS.assigned(data)
    found = FORMATS.subscription(data)
    assert found is None or isinstance(found[0], frozenset)
    for huge in (b"\x00\x01\x7f\xff\xff\xff", b"\x00\x01\x00\x00\x00\x01\x7f\xffa", b"\xff"):
        assert FORMATS.subscription(huge + data[:9]) is None
