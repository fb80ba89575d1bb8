"""Kinds of values that settings have: durations, sizes, secrets; and what all sections share."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from dovetail.errors import InvalidSetting
from dovetail.settings.quantity import parse_bytes, parse_duration_ms

#: Given to a field as `json_schema_extra`: its value is never shown.
SECRET: dict[str, Any] = {"secret": True}


def is_secret(extra: object) -> bool:
    """Whether a field's `json_schema_extra` says that its value must not be shown."""
    return extra == SECRET


def _duration_ms(given: object) -> int:
    try:
        return parse_duration_ms(given)
    except InvalidSetting as error:
        raise ValueError(str(error)) from error


def _bytes(given: object) -> int:
    try:
        return parse_bytes(given)
    except InvalidSetting as error:
        raise ValueError(str(error)) from error


DurationMs = Annotated[int, BeforeValidator(_duration_ms)]
ByteCount = Annotated[int, BeforeValidator(_bytes)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
