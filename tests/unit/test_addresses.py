"""Addresses are read in one place, in every form that people write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.addresses import Address, parse_address, parse_addresses
from dovetail.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        (" broker-1.example:1 ", Address("broker-1.example", 1)),
        ("[::1]:9092", Address("::1", 9092)),
        ("[fe80::1%eth0]:65535", Address("fe80::1%eth0", 65535)),
    ],
)
def test_an_address_is_read_and_written_back(text: str, expected: Address) -> None:
    """U7: IPv6 too, and what is written can be read again."""
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":9092", "host", "host:", "host:x", "host:-1", "host:65536", "host:٣", "::1:9092", "[::1]",
     "[::1]9092", "[host]:1", "http://host:1", "a b:1", "h\n:1"],
)  # fmt: skip
def test_a_mistake_is_named(text: str) -> None:
    """U7: the error shows what was given, and the form it should have."""
    with pytest.raises(InvalidInput, match="host:port") as caught:
        parse_address(text, what="bootstrap server")
    assert "bootstrap server" in str(caught.value)


def test_a_list_keeps_its_order_and_loses_doubles() -> None:
    """U7: a trailing comma does no harm; an empty list is refused."""
    listed = parse_addresses("b:2, a:1,b:2,[::1]:3,")
    assert listed == (Address("b", 2), Address("a", 1), Address("::1", 3))
    with pytest.raises(InvalidInput, match="empty"):
        parse_addresses(" , ")


def test_a_port_can_have_a_default() -> None:
    """U7: only where the caller says so."""
    assert parse_address("host", port_default=9092) == Address("host", 9092)
    assert parse_address("[::1]", port_default=9092) == Address("::1", 9092)
    with pytest.raises(InvalidInput):
        parse_address("host:", port_default=9092)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    """R3: an address, or a clear refusal."""
    try:
        found = parse_address(text)
    except InvalidInput:
        return
    assert parse_address(str(found)) == found
