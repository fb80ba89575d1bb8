"""Types of settings: durations, sizes, ports, secrets; and what sections share."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from dovetail.errors import InvalidSetting
from dovetail.settings.quantity import parse_bytes, parse_duration_ms

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
SECOND_MS = 1000
MINUTE_MS = 60_000
DAY_MS = 86_400_000

_SECRET: dict[str, Any] = {"secret": True}


def setting(default: object, about: str, *, secret: bool = False, **bounds: Any) -> Any:
    """A field of a section: its default, a sentence about it, and pydantic's bounds (`ge`, `le`).

    The value of a `secret` is never shown.
    """
    extra = _SECRET if secret else None
    return Field(default=default, description=about, json_schema_extra=extra, **bounds)


def is_secret(extra: object) -> bool:
    """Whether a field's `json_schema_extra` says that its value must not be shown."""
    return extra == _SECRET


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
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """One section: frozen, and refuses unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, given: object, info: ValidationInfo) -> object:
        """No name, address or path holds NUL; and an empty path, such as that of a variable which
        an environment leaves empty, would be the working folder."""
        if isinstance(given, str | Path) and "\0" in str(given):
            raise ValueError("it holds NUL")
        if given == "" and cls.model_fields[str(info.field_name)].annotation is Path:
            raise ValueError("it is empty; name a path, or leave the setting out")
        return given
