"""Payloads to bytes and back: JSON, MessagePack, Arrow, or raw bytes; never pickle.

A client that can write to a topic must not be able to run code where it is read, so a payload is
data. The annotation of a function chooses the decoder's type: a payload that does not fit is
refused before the function sees it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.errors import InvalidInput

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class Undecodable(InvalidInput):
    """Bytes that are not a payload of this codec, or not of the wanted type."""


class Unencodable(InvalidInput):
    """A value that this codec cannot write."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to write payloads; it travels by its name."""

    name: str

    def encoder(self) -> Encode:
        """A function from values to bytes, which raises `Unencodable`."""
        return _ENCODERS[self.name]()

    def decoder(self, kind: Any = Any) -> Decode:
        """A function from bytes to values of type `kind`, which raises `Undecodable`."""
        return _DECODERS[self.name](kind)


def codec_of(name: str) -> Codec:
    """The codec of that name. Raises `InvalidInput`."""
    if name not in _ENCODERS:
        raise InvalidInput(f"{name!r} is not a codec; take {', '.join(sorted(_ENCODERS))}")
    return Codec(name)


def _guarded(name: str, encode: Encode) -> Encode:
    def encoder(value: Any) -> bytes:
        try:
            return encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Unencodable(
                f"{type(value).__name__} cannot be written as {name}: {error}"
            ) from error

    return encoder


def _checked(name: str, decode: Decode) -> Decode:
    def decoder(data: bytes) -> Any:
        try:
            return decode(data)
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
            raise Undecodable(f"{len(data)} bytes are not a {name} payload: {error}") from error

    return decoder


def _msgspec_decoder(name: str, decoder: Any) -> Callable[[Any], Decode]:
    def make(kind: Any) -> Decode:
        try:
            return _checked(name, decoder(kind).decode)
        except TypeError:
            # A type that msgspec does not know, such as a class of the user's own.
            return _checked(name, decoder(Any).decode)

    return make


def _arrow_encoder() -> Encode:
    import pyarrow as pa

    def encode(value: Any) -> bytes:
        if not isinstance(value, pa.Table | pa.RecordBatch):
            raise TypeError("the arrow codec takes tables and record batches")
        table = value if isinstance(value, pa.Table) else pa.Table.from_batches([value])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    return _guarded("arrow", encode)


def _arrow_decoder(_kind: Any) -> Decode:
    import pyarrow as pa

    def decode(data: bytes) -> Any:
        try:
            return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        except OSError as error:
            raise ValueError(str(error)) from error

    return _checked("arrow", decode)


def _raw_encoder() -> Encode:
    def encode(value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError("the raw codec takes bytes")
        return bytes(value)

    return _guarded("raw", encode)


_ENCODERS: dict[str, Callable[[], Encode]] = {
    "json": lambda: _guarded("json", msgspec.json.Encoder().encode),
    "msgpack": lambda: _guarded("msgpack", msgspec.msgpack.Encoder().encode),
    "arrow": _arrow_encoder,
    "raw": _raw_encoder,
}
_DECODERS: dict[str, Callable[[Any], Decode]] = {
    "json": _msgspec_decoder("json", msgspec.json.Decoder),
    "msgpack": _msgspec_decoder("msgpack", msgspec.msgpack.Decoder),
    "arrow": _arrow_decoder,
    "raw": lambda _kind: bytes,
}
