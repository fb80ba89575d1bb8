"""The codecs of record batches."""

import lz4.frame  # type: ignore[import-untyped]
import pytest

from dovetail.compression import CODECS, deflate, inflate

DATA = b"".join(b"record %d " % number for number in range(40_000))


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_what_is_compressed_comes_back(codec: int) -> None:
    """K2, T9: also what is larger than the first room that is tried."""
    assert bytes(inflate(deflate(DATA, codec), codec)) == DATA
    assert bytes(inflate(deflate(bytes(9 << 20), codec), codec)) == bytes(9 << 20)


def test_blocks_of_lz4_are_independent() -> None:
    """T9: Java's client reads no others."""
    packed = deflate(DATA, CODECS.index("lz4"))
    assert not lz4.frame.get_frame_info(packed)["block_linked"]
    assert lz4.frame.decompress(packed) == DATA
