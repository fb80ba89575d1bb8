"""The bytes in front of a payload of a schema registry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.registry.framing import framed, message_of, message_prefix, schema_id_of


@given(
    st.integers(0, (1 << 32) - 1),
    st.binary(),
    st.none() | st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5),
)
def test_what_is_framed_is_found_again(number: int, payload: bytes, message: list[int]) -> None:
    """T22: the number of the schema and, for Protobuf, of the message."""
    data = framed(number, payload, message=message)
    assert schema_id_of(data) == number
    assert data[:1] == b"\0"
    if message is None:
        assert data[5:] == payload
    else:
        found, at = message_of(data)
        assert (found, data[at:]) == (message, payload)


def test_the_first_message_is_one_byte_as_confluent_writes_it() -> None:
    """T22: [0] is 00; [1, 0] is the count and the numbers, zigzag."""
    assert message_prefix([0]) == b"\x00"
    assert message_prefix([1, 0]) == b"\x04\x02\x00"
    assert framed(258, b"x", message=[0]) == b"\x00\x00\x00\x01\x02\x00x"


@given(st.binary())
def test_bytes_without_a_head_are_refused(data: bytes) -> None:
    """T22: whatever comes, a number or `InvalidInput`."""
    for read in (schema_id_of, message_of):
        try:
            read(data)
        except InvalidInput:
            continue
        assert data[0] == 0
    with pytest.raises(InvalidInput, match="numbers them"):
        framed(1 << 32, data)
