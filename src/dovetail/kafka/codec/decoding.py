"""Decoders, generated from the declarations.

For each struct and version a Python function is generated as source, compiled once and cached. One
`struct` call reads a run of fixed-size fields together with the length that follows them. Every
length and count is compared with what remains of the frame before any object is made, and the
counts of all arrays together with the caller's limit (`room`).

A decoder raises `ProtocolViolation` for errors that it finds itself. For reads beyond the end of
the frame it relies on `struct.error` and `IndexError`, and for bad UTF-8 on `UnicodeDecodeError`:
the caller catches these three (`DECODE_ERRORS`) once a frame, which costs nothing in the good case.

Objects are filled through their slots, not through `__init__`. Messages must therefore have no
`__post_init__`.
"""

import struct
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any, Final, TypeAlias

from dovetail.kafka.codec import primitives
from dovetail.kafka.codec.schema import (
    BYTES,
    RECORDS,
    RECORDS_LIST,
    STRING,
    FieldSpec,
    Primitive,
    element_bytes_min,
    fields_in,
    specs_of,
)

#: Takes the frame, the position to begin at and the end; gives the object and the next position.
Decoder: TypeAlias = Callable[[memoryview, int, int], tuple[Any, int]]

#: What a decoder raises beside `ProtocolViolation`, all of it the sender's fault.
DECODE_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError)

_VALUE_OF: Final = {
    STRING: 'str(buf[pos:stop], "utf-8")',
    BYTES: "bytes(buf[pos:stop])",
    RECORDS: "buf[pos:stop]",
    RECORDS_LIST: "(buf[pos:stop],)",
}

_made: Final[dict[tuple[type[Any], int, bool], Decoder]] = {}


def decoder(message: type[Any], version: int, flexible: bool) -> Decoder:
    """The decoder of a message or nested struct in one version; made on first use, then kept."""
    key = (message, version, flexible)
    made = _made.get(key)
    if made is None:
        made = _made[key] = _DecoderSource(message, version, flexible).compile()
    return made


class _DecoderSource:
    """The source of one decoder while it is being written."""

    def __init__(self, message: type[Any], version: int, flexible: bool) -> None:
        self._message = message
        self._version = version
        self._flexible = flexible
        self._where = f"{message.__name__} v{version}"
        self._lines = ["def decode(buf, pos, end):"]
        self._depth = 1
        self._run_codes: list[str] = []
        self._run_targets: list[str] = []
        self._names: dict[str, Any] = {**vars(primitives), "new": object.__new__, "cls": message}
        self._names["unpack_from"] = struct.unpack_from

    def compile(self) -> Decoder:
        """Writes the whole function and compiles it."""
        plain, tagged = fields_in(self._message, self._version)
        for spec in plain:
            self._field(spec)
        if self._flexible:
            self._tags(tagged)
        self._flush()
        self._build({spec.name for spec in (*plain, *tagged)})
        code = compile("\n".join(self._lines), f"<decoder of {self._where}>", "exec")
        exec(code, self._names)  # noqa: S102  The source is made from our own declarations only.
        decode: Decoder = self._names["decode"]
        return decode

    def _build(self, present: set[str]) -> None:
        self._line("made = new(cls)")
        for spec in specs_of(self._message):
            self._names[f"set_{spec.name}"] = getattr(self._message, spec.name).__set__
            value = f"v_{spec.name}" if spec.name in present else self._default(spec)
            self._line(f"set_{spec.name}(made, {value})")
        self._line("return made, pos")

    def _default(self, spec: FieldSpec) -> str:
        if spec.default is MISSING:
            raise TypeError(f"{self._where} lacks {spec.name}, which has no default")
        self._names[f"default_{spec.name}"] = spec.default
        return f"default_{spec.name}"

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _fixed(self, code: str, target: str) -> None:
        self._run_codes.append(code)
        self._run_targets.append(target)

    def _flush(self) -> None:
        """Reads the run of fixed-size values that has gathered."""
        if not self._run_codes:
            return
        if self._run_codes == ["B"]:
            self._line(f"{self._run_targets[0]} = buf[pos]")
            self._line("pos += 1")
        else:
            run = struct.Struct("!" + "".join(self._run_codes))
            name = f"run_{len(self._names)}"
            self._names[name] = run.unpack_from
            self._line(f"({', '.join(self._run_targets)},) = {name}(buf, pos)")
            self._line(f"pos += {run.size}")
        self._run_codes.clear()
        self._run_targets.clear()

    def _field(self, spec: FieldSpec) -> None:
        target = f"v_{spec.name}"
        where = f"{self._where} {spec.name}"
        nullable = spec.null_in(self._version)
        if spec.array:
            self._array(spec, target, where, nullable)
        elif isinstance(spec.element, Primitive):
            self._primitive(spec.element, target, where, nullable)
        elif nullable:
            self._fixed("b", "n")
            self._flush()
            self._line("if n < 0:")
            self._line(f"    {target} = None")
            self._line("else:")
            self._depth += 1
            self._struct(spec.element, target)
            self._depth -= 1
        else:
            self._flush()
            self._struct(spec.element, target)

    def _primitive(self, kind: Primitive, target: str, where: str, nullable: bool) -> None:
        if kind.code:
            self._fixed(kind.code, target)
            return
        self._length("h" if kind is STRING else "i", where, is_string=kind is STRING)
        self._null_or(target, f"length_wrong({where!r}, n, end - pos)", nullable)
        self._line("stop = pos + n")
        self._line("if stop > end:")
        self._line(f"    raise length_wrong({where!r}, n, end - pos)")
        self._line(f"{target} = {_VALUE_OF[kind]}")
        self._line("pos = stop")
        self._depth -= 1

    def _length(self, code: str, where: str, *, is_string: bool) -> None:
        """Reads a length or count into `n`; null is -1 in both encodings."""
        if not self._flexible:
            self._fixed(code, "n")
            self._flush()
            return
        self._fixed("B", "n")
        self._flush()
        self._line("if n > 127:")
        self._line("    n, pos = read_uvarint(buf, pos - 1)")
        if is_string:
            self._line("    if n > STRING_BYTES_MAX + 1:")
            self._line(f"        raise string_too_long({where!r}, n - 1)")
        self._line("n -= 1")

    def _null_or(self, target: str, wrong: str, nullable: bool) -> None:
        """Handles a negative `n`; what follows goes to the other branch, one level deeper."""
        self._line("if n < 0:")
        if nullable:
            self._line("    if n != -1:")
            self._line(f"        raise {wrong}")
            self._line(f"    {target} = None")
        else:
            self._line(f"    raise {wrong}")
        self._line("else:")
        self._depth += 1

    def _array(self, spec: FieldSpec, target: str, where: str, nullable: bool) -> None:
        least = element_bytes_min(spec.element, self._version, flexible=self._flexible)
        self._length("i", where, is_string=False)
        self._null_or(target, f"count_wrong({where!r}, n)", nullable)
        self._line(f"if n * {least} > end - pos:")
        self._line(f"    raise count_too_high({where!r}, n, {least}, end - pos)")
        self._line("room.left -= n")
        self._line("if room.left < 0:")
        self._line(f"    raise too_many({where!r}, n)")
        if isinstance(spec.element, Primitive) and spec.element.code:
            self._line(f"{target} = unpack_from(f'!{{n}}{spec.element.code}', buf, pos)")
            self._line(f"pos += n * {least}")
        else:
            self._line("items = []")
            self._line("for _ in range(n):")
            self._depth += 1
            if isinstance(spec.element, Primitive):
                self._primitive(spec.element, "item", f"{where} element", nullable=False)
            else:
                self._struct(spec.element, "item")
            self._line("items.append(item)")
            self._depth -= 1
            self._line(f"{target} = tuple(items)")
        self._depth -= 1

    def _struct(self, element: type[Any], target: str) -> None:
        name = f"decode_{element.__name__}"
        self._names[name] = decoder(element, self._version, self._flexible)
        self._line(f"{target}, pos = {name}(buf, pos, end)")

    def _tags(self, tagged: list[FieldSpec]) -> None:
        self._fixed("B", "n")
        self._flush()
        for spec in tagged:
            self._line(f"v_{spec.name} = {self._default(spec)}")
        self._line("if n:")
        self._depth += 1
        if tagged:
            self._known_tags(tagged)
        else:
            self._line(f"pos = skip_tags({self._where!r}, buf, pos - 1, end)")
        self._depth -= 1

    def _known_tags(self, tagged: list[FieldSpec]) -> None:
        self._line(f"tags, pos = read_tag_count({self._where!r}, buf, pos - 1, end)")
        self._line("for _ in range(tags):")
        self._depth += 1
        self._line(f"tag, start, tag_end = read_tag({self._where!r}, buf, pos, end)")
        self._line("pos = start")
        for index, spec in enumerate(tagged):
            self._line(f"{'elif' if index else 'if'} tag == {spec.tag}:")
            self._depth += 1
            self._field(spec)
            self._flush()
            self._depth -= 1
        self._line("else:")
        self._line("    pos = tag_end")
        self._line("if pos != tag_end:")
        self._line(f"    raise tag_size_wrong({self._where!r}, tag, tag_end - start)")
        self._depth -= 1
