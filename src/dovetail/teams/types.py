"""Whether the result of one function fits the payload of the next, as far as annotations say; pure.

Only certain mismatches are refused, such as `list[int]` into `str`; `Any`, a missing annotation or
a type that this module does not understand fits. Payloads travel as data, so a dataclass, a
TypedDict or a msgspec struct fits where a dict is wanted, and vice versa: the decoder checks the
fields of each payload.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Union, get_args, get_origin

import msgspec

_NUMBERS = {int: {int, float, complex}, bool: {bool, int, float}}


def payload_type(function: Callable[..., Any]) -> Any:
    """The annotation of the first parameter; `Any` if there is none that can be read."""
    hints = _hints(function)
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return Any
    return hints.get(names[0], Any) if names else Any


def result_type(function: Callable[..., Any]) -> Any:
    """The annotation of what is returned; `Any` if there is none that can be read."""
    return _hints(function).get("return", Any)


def item_type(kind: Any) -> Any:
    """The type of the items of a list type; None if it is surely not a list."""
    if kind is Any:
        return Any
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return Any
    if not isinstance(origin, type):
        return Any
    if issubclass(origin, str | bytes | Mapping) or not issubclass(origin, Iterable):
        return None
    arguments = get_args(kind)
    return arguments[0] if arguments else Any


def fits(given: Any, wanted: Any) -> bool:
    """Whether a value of type `given` can be a payload of type `wanted`; True in doubt."""
    if given is Any or wanted is Any or given == wanted:
        return True
    for side, other in ((given, wanted), (wanted, given)):
        if get_origin(side) in (Union, types.UnionType):
            if side is given:
                return any(fits(one, other) for one in get_args(side))
            return any(fits(other, one) for one in get_args(side))

    outer, target = get_origin(given) or given, get_origin(wanted) or wanted
    if not isinstance(outer, type) or not isinstance(target, type):
        return True
    if _is_mapping(outer) and _is_mapping(target):
        return True
    if _is_list(outer) and _is_list(target):
        inner, asked = get_args(given), get_args(wanted)
        return not inner or not asked or fits(inner[0], asked[0])
    return issubclass(outer, target) or target in _NUMBERS.get(outer, ()) or _unknown(outer, target)


def name_of(kind: Any) -> str:
    """The type as a reader would write it."""
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (TypeError, NameError, AttributeError):
        return {}


def _is_mapping(kind: type) -> bool:
    return (
        issubclass(kind, Mapping | msgspec.Struct)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
    )


def _is_list(kind: type) -> bool:
    return issubclass(kind, Sequence | AbstractSet) and not issubclass(kind, str | bytes)


def _unknown(*kinds: type) -> bool:
    """Whether one is neither plain data nor a record or list of it: then we cannot say."""
    plain = (int, float, str, bytes, bool, type(None))
    return not all(_is_mapping(kind) or _is_list(kind) or issubclass(kind, plain) for kind in kinds)
