"""Encoders, generated from the declarations.

The counterpart of `decoding`: one compiled function for each struct and version. An encoder appends
small pieces of bytes to a list; a run of fixed-size fields, with the length that follows them, is
one piece. Record batches go into the same list unchanged, and their positions are noted, so that
`frame` can join everything else and leave them alone.

A field that the version does not have is not sent. A tagged field is sent if it differs from its
default. A value that does not fit its field raises one of `ENCODE_ERRORS`; the caller turns it into
an `InvalidInput` that names the message.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from dovetail.buffers import Buffer
from dovetail.kafka.codec.primitives import NULL_STRUCT, PRESENT_STRUCT, uvarint
from dovetail.kafka.codec.schema import (
    RECORDS,
    RECORDS_LIST,
    STRING,
    UUID,
    EncodedOnce,
    FieldSpec,
    Primitive,
    fields_in,
)

#: Takes the object, the list of pieces, and the list of places where record batches begin and end.
Encoder: TypeAlias = Callable[[Any, list[Buffer], list[int]], None]

#: What an encoder raises when a value does not fit its field.
ENCODE_ERRORS: Final = (struct.error, AttributeError, TypeError, ValueError)

_PREFIX: Final = struct.Struct("!i")

_made: Final[dict[tuple[type[Any], int, bool], Encoder]] = {}


def encoder(message: type[Any], version: int, flexible: bool) -> Encoder:
    """The encoder of a message or nested struct in one version; made on first use, then kept."""
    key = (message, version, flexible)
    made = _made.get(key)
    if made is None:
        made = _EncoderSource(message, version, flexible).compile()
        if issubclass(message, EncodedOnce):
            made = _once(made, version)
        _made[key] = made
    return made


def _once(encode: Encoder, version: int) -> Encoder:
    """The same bytes as `encode` makes; an object is encoded once in each version."""

    def encode_once(made: Any, out: list[Buffer], cuts: list[int]) -> None:
        try:
            encodings = made.encodings
        except AttributeError:
            encodings = made.encodings = {}
        known = encodings.get(version)
        if known is None:
            pieces: list[Buffer] = []
            encode(made, pieces, cuts)
            known = encodings[version] = b"".join(pieces)
        out.append(known)

    return encode_once


def frame(pieces: list[Buffer], cuts: list[int]) -> list[Buffer]:
    """The buffers of a whole frame, its length in front; `pieces[0]` is empty, kept for that.

    `cuts` holds pairs of indexes into `pieces`, between which lie record batches.
    """
    pieces[0] = _PREFIX.pack(sum(map(len, pieces)))
    if not cuts:
        return [b"".join(pieces)]
    buffers: list[Buffer] = []
    joined = 0
    for first, last in zip(cuts[::2], cuts[1::2], strict=True):
        buffers.append(b"".join(pieces[joined:first]))
        buffers.extend(pieces[first:last])
        joined = last
    if joined < len(pieces):
        buffers.append(b"".join(pieces[joined:]))
    return buffers


def _uuid_checked(value: bytes) -> bytes:
    if len(value) != 16:
        raise ValueError(f"a uuid has 16 bytes, this has {len(value)}")
    return value


class _EncoderSource:
    """The source of one encoder while it is being written."""

    def __init__(self, message: type[Any], version: int, flexible: bool) -> None:
        self._message = message
        self._version = version
        self._flexible = flexible
        self._lines = ["def encode(made, out, cuts):"]
        self._depth = 1
        self._sink = "out"
        self._run_codes: list[str] = []
        self._run_values: list[str] = []
        self._names: dict[str, Any] = {
            "uvarint": uvarint,
            "uuid_checked": _uuid_checked,
            "pack": struct.pack,
        }

    def compile(self) -> Encoder:
        """Writes the whole function and compiles it."""
        plain, tagged = fields_in(self._message, self._version)
        for spec in plain:
            self._field(spec)
        if self._flexible and tagged:
            self._tags(tagged)
        elif self._flexible:
            self._run_codes.append("x")
        self._flush()
        self._line("return")
        label = f"<encoder of {self._message.__name__} v{self._version}>"
        code = compile("\n".join(self._lines), label, "exec")
        exec(code, self._names)  # noqa: S102  The source is made from our own declarations only.
        encode: Encoder = self._names["encode"]
        return encode

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _add(self, expression: str) -> None:
        self._line(f"{self._sink}.append({expression})")

    def _fixed(self, code: str, value: str) -> None:
        self._run_codes.append(code)
        self._run_values.append(value)

    def _flush(self) -> None:
        """Writes the run of fixed-size values that has gathered."""
        if not self._run_codes:
            return
        if self._run_values:
            name = f"run_{len(self._names)}"
            self._names[name] = struct.Struct("!" + "".join(self._run_codes)).pack
            self._add(f"{name}({', '.join(self._run_values)})")
        else:
            self._add(repr(bytes(len(self._run_codes))))
        self._run_codes.clear()
        self._run_values.clear()

    def _field(self, spec: FieldSpec) -> None:
        value = f"made.{spec.name}"
        nullable = spec.null_in(self._version)
        if spec.array:
            self._array(spec, value, nullable)
        elif isinstance(spec.element, Primitive):
            self._primitive(spec.element, value, nullable)
        elif nullable:
            self._flush()
            self._line(f"if {value} is None:")
            self._line(f"    {self._sink}.append({NULL_STRUCT!r})")
            self._line("else:")
            self._depth += 1
            self._add(repr(PRESENT_STRUCT))
            self._struct(spec.element, value)
            self._depth -= 1
        else:
            self._struct(spec.element, value)

    def _primitive(self, kind: Primitive, value: str, nullable: bool) -> None:
        if kind is UUID:
            self._fixed(kind.code, f"uuid_checked({value})")
            return
        if kind.code:
            self._fixed(kind.code, value)
            return

        code = "h" if kind is STRING else "i"
        self._line(f"data = {value}")
        self._null_or(code, nullable)

        if kind is RECORDS or kind is RECORDS_LIST:
            self._records(kind)
        else:
            if kind is STRING:
                self._line("data = data.encode()")
            self._length(code, "len(data)")
            self._add("data")
        self._depth -= nullable

    def _null_or(self, code: str, nullable: bool) -> None:
        """Writes the null marker if `data` is None; what follows goes to the other branch."""
        if not nullable:
            return
        self._flush()
        null = bytes(1) if self._flexible else b"\xff" * struct.calcsize("!" + code)
        self._line("if data is None:")
        self._line(f"    {self._sink}.append({null!r})")
        self._line("else:")
        self._depth += 1

    def _length(self, code: str, length: str) -> None:
        """Writes a length or count; compact ones are one more than the length."""
        if self._flexible:
            self._flush()
            self._add(f"uvarint({length} + 1)")
        else:
            self._fixed(code, length)
            self._flush()

    def _records(self, kind: Primitive) -> None:
        if kind is RECORDS:
            self._line("data = (data,)")
        self._length("i", "sum(map(len, data))")
        self._line("if data:")
        self._line("    cuts.append(len(out))")
        self._line("    out.extend(data)")
        self._line("    cuts.append(len(out))")

    def _array(self, spec: FieldSpec, value: str, nullable: bool) -> None:
        self._line(f"data = {value}")
        self._null_or("i", nullable)
        self._length("i", "len(data)")
        if isinstance(spec.element, Primitive) and spec.element.code:
            self._add(f"pack(f'!{{len(data)}}{spec.element.code}', *data)")
        else:
            self._line("for item in data:")
            self._depth += 1
            if isinstance(spec.element, Primitive):
                self._primitive(spec.element, "item", nullable=False)
                self._flush()
            else:
                self._struct(spec.element, "item")
            self._depth -= 1
        self._depth -= nullable

    def _struct(self, element: type[Any], value: str) -> None:
        self._flush()
        name = f"encode_{element.__name__}"
        self._names[name] = encoder(element, self._version, self._flexible)
        self._line(f"{name}({value}, {self._sink}, cuts)")

    def _tags(self, tagged: list[FieldSpec]) -> None:
        self._flush()
        self._line("tags = []")
        for spec in tagged:
            default = f"default_{spec.name}"
            self._names[default] = spec.default
            self._line(f"if made.{spec.name} is not {default} and made.{spec.name} != {default}:")
            self._depth += 1
            self._line("body = []")
            self._sink = "body"
            self._field(spec)
            self._flush()
            self._sink = "out"
            self._line("body = b''.join(body)")
            self._line(f"tags.append({uvarint(spec.tag or 0)!r} + uvarint(len(body)) + body)")
            self._depth -= 1
        self._add("uvarint(len(tags))")
        self._line("out.extend(tags)")
