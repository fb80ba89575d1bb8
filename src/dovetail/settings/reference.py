"""`docs/settings.md`: every setting as a page of Markdown, made from the code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from dovetail.settings.given import ENVIRONMENT_PREFIX, variable_of
from dovetail.settings.kinds import is_secret
from dovetail.settings.quantity import format_bytes, format_duration_ms
from dovetail.settings.sections import Settings

#: Bounds from here on are those of the number itself, and no bounds for people.
_BOUNDLESS = 2**62

_INTRODUCTION = f"""# Settings

Generated from the code by `dovetail config reference > docs/settings.md`. You can give a setting in
four places; the first in this list that has it wins:

| place | spelled | example |
|---|---|---|
| flag | `--set section.name=value`, or a command's own flag | `--set log.retention_ms=2d` |
| environment | `{ENVIRONMENT_PREFIX}SECTION_NAME` | `{variable_of("log.retention_ms")}=2d` |
| file | `[section]` and `name = value`, TOML | `[log]` `retention_ms = "2d"` |
| default | | `7d` |

The file is `--config FILE`, else `DOVETAIL_CONFIG`, else `dovetail.toml` in the working folder. An
unknown name is an error that suggests the nearest known one; only an environment variable that
resembles no setting, such as Kubernetes' `DOVETAIL_SERVICE_HOST`, is ignored. Write durations as
`7d`, `90s`, `250ms`, or as an integer in the unit at the end of the setting's name, and sizes as
`64MiB`, `1GB`, or an integer of bytes. `dovetail config show` prints the values in effect and where
each was set.
"""


def reference() -> str:
    """The page."""
    return _INTRODUCTION + "".join(_sections())


def _sections() -> Iterator[str]:
    for section_name, section in Settings.model_fields.items():
        kind = type(section.default)
        yield f"\n## {section_name}\n\n{(kind.__doc__ or '').strip()}\n\n"
        yield "| setting | default | allowed | what it does |\n|---|---|---|---|\n"
        for name, field in kind.model_fields.items():
            full = f"{section_name}.{name}"
            about = (field.description or "").replace("|", "\\|")
            if is_secret(field.json_schema_extra):
                about += " Never shown."
            cells = (f"`{full}`", _default(full, field.default), _allowed(full, field), about)
            yield f"| {' | '.join(cells)} |\n"


def _default(name: str, value: Any) -> str:
    if isinstance(value, str | Path):
        return f"`{value}`" if str(value) else "empty"
    return f"`{_shown(name, value)}`"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value >= 0:
        if "_ms" in name or "_millis" in name:
            return format_duration_ms(value)
        if "_bytes" in name:
            return format_bytes(value)
    return str(value)


def _allowed(name: str, field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if field.annotation is bool:
        return "`true`, `false`"
    bounds = {
        bound: _shown(name, value)
        for bound, value in bounds_of(field).items()
        if value < _BOUNDLESS
    }
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    return f"from {bounds['ge']}" if "ge" in bounds else ""


def bounds_of(field: FieldInfo) -> dict[str, Any]:
    """The least (`ge`) and the greatest (`le`) value that a setting can have, where it has one."""
    limits = [
        limit
        for item in field.metadata
        for limit in (item.metadata if isinstance(item, FieldInfo) else (item,))
    ]
    found = ((bound, getattr(limit, bound, None)) for limit in limits for bound in ("ge", "le"))
    return {bound: value for bound, value in found if value is not None}
