"""Messages for tests, made from the same declarations as the codec: random ones and one sample."""

from dataclasses import MISSING
from typing import Any

from hypothesis import strategies as st

from dovetail.buffers import Buffer
from dovetail.kafka.codec.apis import SUPPORTED, Api
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.kafka.codec.schema import FieldSpec, Primitive, specs_of

#: Few, so that a message of four levels stays small; two are enough to show a wrong position.
ELEMENTS_MAX = 2

#: Tags from here on are our own.
OWN_TAGS = 10_000

_TEXT = st.sampled_from(
    ["", "a", "orders", "naïve", "\N{SNOWMAN}", "x" * 126, "x" * 127, "\0", "é" * 90]
)
_BYTES = st.sampled_from([b"", b"\0", b"abc", bytes(127), b"\xff" * 128, bytes(300)])

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES.map(memoryview),
    "records list": _BYTES.map(lambda data: (memoryview(data),)),
}

_SAMPLES: dict[str, Any] = {
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "uint16": 5,
    "float64": 1.5,
    "bool": True,
    "uuid": bytes(range(16)),
    "string": "naïve",
    "bytes": b"\x00\xff",
    "records": memoryview(b"batch"),
    "records list": (memoryview(b"batch"),),
}


def is_own(spec: FieldSpec) -> bool:
    """Whether a field is an addition of ours, which Kafka's clients pass over."""
    return spec.tag is not None and spec.tag >= OWN_TAGS


def messages(message: type[Any], version: int, *, own: bool = True) -> st.SearchStrategy[Any]:
    """Messages of one version; fields that it does not have are left at their defaults, and so
    are ours unless `own`."""
    present = {
        spec.name: _field(spec, version, own)
        for spec in specs_of(message)
        if spec.in_version(version) and (own or not is_own(spec))
    }
    return st.builds(message, **present)


def _field(spec: FieldSpec, version: int, own: bool) -> st.SearchStrategy[Any]:
    if isinstance(spec.element, Primitive):
        value = _PRIMITIVES[spec.element.name]
    else:
        value = messages(spec.element, version, own=own)
    if spec.array:
        value = st.lists(value, max_size=ELEMENTS_MAX).map(tuple)
    if spec.null_in(version):
        value = st.none() | value
    if spec.tag is not None and spec.default is not MISSING:
        value = st.just(spec.default) | value
    return value


def sample(message: type[Any], version: int) -> Any:
    """One message of this version with every field filled and one element in every array."""
    return message(
        **{
            spec.name: _sample_field(spec, version)
            for spec in specs_of(message)
            if spec.in_version(version)
        }
    )


def _sample_field(spec: FieldSpec, version: int) -> Any:
    if isinstance(spec.element, Primitive):
        value = _SAMPLES[spec.element.name]
    else:
        value = sample(spec.element, version)
    return (value,) if spec.array else value


def all_versions() -> list[tuple[Api, int]]:
    """Every request type in every version that the codec reads."""
    return [
        (api, version)
        for api in SUPPORTED.values()
        for version in range(api.advertised_lowest, api.highest + 1)
    ]


def version_name(case: object) -> str:
    """How pytest calls a parameter of `all_versions`."""
    return case.name if isinstance(case, Api) else f"v{case}"


def unframed(buffers: list[Buffer]) -> memoryview:
    """The frame without its length, which must be right."""
    joined = b"".join(buffers)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    return memoryview(joined)[4:]


def header_of(api: Api, version: int) -> RequestHeader:
    """A request header for one version."""
    return RequestHeader(int(api.key), version, 0x01020304, "tester")
