"""How a message is declared: a dataclass whose annotations give the wire format.

`message` makes the dataclass; the annotation of each field gives its type on the wire, in the order
of the wire:

    name: String                                              in every version, never null
    leader_epoch: Annotated[Int32, Wire(since=7)] = -1        from version 7; else its default
    replica_id: Annotated[Int32, Wire(until=14)] = -1         up to version 14
    topics: Annotated[tuple[Topic, ...] | None, Wire(nullable=1)]    null allowed from version 1
    rack: String | None = None                                null allowed wherever it exists
    cursor: Cursor | None = None                              a struct with a byte that says null
    cluster_id: Annotated[String | None, Wire(since=12, tag=0)] = None     a tagged field

Versions are those of the whole message, also inside nested structs. A field that every supported
version has, and for which Kafka names no default, has none here, so that a forgotten field is a
type error. `specs_of` reads the declaration; encoders and decoders are generated from it.
"""

import struct
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from dovetail.buffers import Buffer

#: A version above all versions that Kafka has or will have in a 16-bit number.
VERSION_MAX: Final = 0x7FFF

#: The topic id that stands for "none".
ZERO_UUID: Final = bytes(16)

Message = TypeVar("Message")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[Message]) -> type[Message]:
    """Makes a message of a declaration: a dataclass by keywords, which types say nobody changes.

    There are hundreds, and every process that speaks Kafka makes them when it starts. A frozen
    dataclass has six functions written out and compiled, and one more call for each field of each
    object; here only `__init__` is, a quarter of the time, and the rest is shared.
    """
    made = dataclass(eq=False, repr=False, match_args=False, slots=True, kw_only=True)(cls)
    shared = {"__eq__": _equal, "__hash__": _hash, "__repr__": _show}
    for name, function in shared.items():
        setattr(made, name, function)
    return made


class EncodedOnce:
    """A base for structs that are told again and again: each keeps its bytes, by version.

    Nothing in one may change once it was sent.
    """

    __slots__ = ("encodings",)
    encodings: dict[int, bytes]


def _values(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, field.name) for field in fields(one))


def _equal(self: Any, other: object) -> bool:
    return type(other) is type(self) and _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


def _show(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
    return f"{type(self).__qualname__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type of the protocol; `code` is its `struct` code if its size is fixed, else empty."""

    name: str
    code: str = ""


INT8 = Primitive("int8", "b")
INT16 = Primitive("int16", "h")
INT32 = Primitive("int32", "i")
INT64 = Primitive("int64", "q")
UINT16 = Primitive("uint16", "H")
FLOAT64 = Primitive("float64", "d")
BOOL = Primitive("bool", "?")
UUID = Primitive("uuid", "16s")
STRING = Primitive("string")
BYTES = Primitive("bytes")
RECORDS = Primitive("records")
RECORDS_LIST = Primitive("records list")

Int8 = Annotated[int, INT8]
Int16 = Annotated[int, INT16]
Int32 = Annotated[int, INT32]
Int64 = Annotated[int, INT64]
UInt16 = Annotated[int, UINT16]
Float64 = Annotated[float, FLOAT64]
Bool = Annotated[bool, BOOL]
#: Sixteen bytes; not `uuid.UUID`, which costs a microsecond and is only ever compared here.
Uuid = Annotated[bytes, UUID]
String = Annotated[str, STRING]
Bytes = Annotated[bytes, BYTES]
#: Record batches as they came: a slice of the frame, valid as long as the frame is.
Records = Annotated[memoryview, RECORDS]
#: Record batches to be sent one after the other, none of them copied.
RecordsList = Annotated[tuple[Buffer, ...], RECORDS_LIST]


@dataclass(frozen=True, slots=True)
class Wire:
    """In which versions a field exists, from which it may be null, and its tag if it has one."""

    since: int = 0
    until: int = VERSION_MAX
    nullable: int = 0
    tag: int | None = None


Element: TypeAlias = Primitive | type[Any]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field, as read from its annotation.

    `nullable` is None if null is never allowed; `default` is `dataclasses.MISSING` if it has none.
    """

    name: str
    element: Element
    array: bool
    since: int
    until: int
    nullable: int | None
    tag: int | None
    default: Any

    def in_version(self, version: int) -> bool:
        """Whether the field is on the wire in this version."""
        return self.since <= version <= self.until

    def null_in(self, version: int) -> bool:
        """Whether null is allowed in this version."""
        return self.nullable is not None and version >= self.nullable


def specs_of(message: type[Any]) -> tuple[FieldSpec, ...]:
    """The fields of a message or nested struct in the order of the wire."""
    hints = get_type_hints(message, include_extras=True)
    return tuple(_spec(field.name, hints[field.name], field.default) for field in fields(message))


def fields_in(message: type[Any], version: int) -> tuple[list[FieldSpec], list[FieldSpec]]:
    """The plain and the tagged fields of one version, the latter sorted by tag."""
    present = [spec for spec in specs_of(message) if spec.in_version(version)]
    tagged = [spec for spec in present if spec.tag is not None]
    tagged.sort(key=lambda spec: spec.tag or 0)
    return [spec for spec in present if spec.tag is None], tagged


def bytes_min(message: type[Any], version: int, *, flexible: bool) -> int:
    """The fewest bytes that a struct of this version can take; a bound on honest counts."""
    plain, _ = fields_in(message, version)
    return sum(_field_bytes_min(spec, version, flexible) for spec in plain) + flexible


def _field_bytes_min(spec: FieldSpec, version: int, flexible: bool) -> int:
    if spec.array:
        return 1 if flexible else 4
    if isinstance(spec.element, Primitive):
        return element_bytes_min(spec.element, version, flexible=flexible)
    if spec.null_in(version):
        return 1
    return bytes_min(spec.element, version, flexible=flexible)


def element_bytes_min(element: Element, version: int, *, flexible: bool) -> int:
    """The fewest bytes that one element of an array can take, at least one."""
    if not isinstance(element, Primitive):
        return max(1, bytes_min(element, version, flexible=flexible))
    if element.code:
        return struct.calcsize("!" + element.code)
    if flexible:
        return 1
    return 2 if element is STRING else 4


def _spec(name: str, hint: Any, default: Any) -> FieldSpec:
    wire = Wire()
    optional = False
    array = False
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            base, *marks = get_args(hint)
            wire = next((mark for mark in marks if isinstance(mark, Wire)), wire)
            primitive = next((mark for mark in marks if isinstance(mark, Primitive)), None)
            if primitive is not None:
                hint = primitive
                break
            hint = base
        elif origin is UnionType or origin is Union:
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
            optional = True
        elif origin is tuple:
            hint = get_args(hint)[0]
            array = True
        else:
            break

    element: Element = hint
    if not isinstance(element, Primitive) and not is_dataclass(element):
        raise TypeError(f"field {name} is declared as {hint!r}, which has no wire format")
    nullable = max(wire.nullable, wire.since) if optional else None
    return FieldSpec(name, element, array, wire.since, wire.until, nullable, wire.tag, default)
