"""Parses and formats durations and sizes.

`parse_*` accept what a person, a TOML file or an environment variable gives; `format_*` write the
shortest text that parses to the same number.
"""

import re
from decimal import Decimal

from dovetail.errors import InvalidSetting

#: The value that stands for "no limit" where a setting allows it, as in Kafka's own settings.
UNLIMITED = -1

_MS_PER_UNIT = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_BYTES_PER_UNIT = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
#: Digits are bounded so that a long text cannot make arithmetic slow; 19 digits fill 64 bits.
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([a-zA-Z]+)", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def parse_duration_ms(given: object) -> int:
    """Milliseconds of `250ms`, `90s`, `15m`, `12h`, `7d`, `2w`, `none` or an integer.

    Raises `InvalidSetting` if it is none of these, or not a whole number of milliseconds.
    """
    return _parse(given, _MS_PER_UNIT, kind="duration", example="7d, 90s or 250ms")


def parse_bytes(given: object) -> int:
    """Bytes of `64MiB`, `1GB`, `512B`, `none` or an integer.

    Raises `InvalidSetting` if it is none of these, or not a whole number of bytes.
    """
    return _parse(given, _BYTES_PER_UNIT, kind="size", example="64MiB, 1GB or 4096")


def format_duration_ms(duration_ms: int) -> str:
    """The duration in the largest unit that divides it."""
    return _format(duration_ms, {unit: _MS_PER_UNIT[unit] for unit in ("d", "h", "m", "s", "ms")})


def format_bytes(size_bytes: int) -> str:
    """The size in the largest binary unit that divides it."""
    units = {"TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}
    return _format(size_bytes, units)


def _parse(given: object, factor_by_unit: dict[str, int], *, kind: str, example: str) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = str(given).strip()
    if text.lower() == "none":
        return UNLIMITED
    if _INTEGER.fullmatch(text):
        return int(text)
    match = _QUANTITY.fullmatch(text)
    factor = factor_by_unit.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidSetting(f"{text!r} is not a {kind}; write it like {example}")
    value = Decimal(match[1]) * factor
    if value != int(value):
        raise InvalidSetting(
            f"{text!r} is not a whole number of the smallest unit; use a smaller unit"
        )
    return int(value)


def _format(value: int, factor_by_unit: dict[str, int]) -> str:
    if value == UNLIMITED:
        return "none"
    for unit, factor in factor_by_unit.items():
        if value >= factor and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)
