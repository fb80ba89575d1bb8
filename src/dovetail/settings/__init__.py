"""Settings: one frozen object, and for every value where it came from.

A setting has one name, `section.name`, and four places where it can be given. The first in this
list that names it wins:

    place         spelled                              example
    flag          --set section.name=value, or a       --set log.retention_ms=2d
                  command's own flag for it            --port 9092
    environment   DOVETAIL_<SECTION>_<NAME>            DOVETAIL_LOG_RETENTION_MS=2d
    file          [section] name = value (TOML)        [log] retention_ms = "2d"
    default       this package                         7d

No section has an underscore in its name, so the first underscore after `DOVETAIL_` ends it. The
file is `--config`, else `DOVETAIL_CONFIG`, else `dovetail.toml` in the working folder if there is
one. A name that is not known is an `InvalidSetting`, in every place, with the nearest known one in
its message: a misspelt limit must not silently be no limit. A variable `DOVETAIL_*` is therefore
either a setting or `DOVETAIL_CONFIG`.

Durations are written `7d`, `90s`, `250ms`, or as an integer in the unit that the name ends with;
sizes `64MiB`, `1GB`, or an integer of bytes.
"""

import importlib
from typing import TYPE_CHECKING

from dovetail.settings.given import (
    CONFIG_PATH_DEFAULT,
    CONFIG_VARIABLE,
    ENVIRONMENT_PREFIX,
    Flag,
    Origin,
    parse_assignment,
)
from dovetail.settings.quantity import (
    format_bytes,
    format_duration_ms,
    parse_bytes,
    parse_duration_ms,
)

if TYPE_CHECKING:
    from dovetail.settings.client import ClientSettings
    from dovetail.settings.coordination import CoordinationSettings
    from dovetail.settings.http import HttpSettings
    from dovetail.settings.sections import (
        GroupsSettings,
        KafkaSettings,
        LoggingSettings,
        LogSettings,
        NodeSettings,
        Settings,
        Shown,
        StorageSettings,
        TimelineSettings,
    )
    from dovetail.settings.security import SecuritySettings
    from dovetail.settings.sources import load_settings

__all__ = [
    "CONFIG_PATH_DEFAULT",
    "CONFIG_VARIABLE",
    "ENVIRONMENT_PREFIX",
    "ClientSettings",
    "CoordinationSettings",
    "Flag",
    "GroupsSettings",
    "HttpSettings",
    "KafkaSettings",
    "LogSettings",
    "LoggingSettings",
    "NodeSettings",
    "Origin",
    "SecuritySettings",
    "Settings",
    "Shown",
    "StorageSettings",
    "TimelineSettings",
    "format_bytes",
    "format_duration_ms",
    "load_settings",
    "parse_assignment",
    "parse_bytes",
    "parse_duration_ms",
]


def __getattr__(name: str) -> object:
    """The sections, and what checks them, are imported when they are used.

    They need pydantic, whose import takes more processor time than all that a short command does.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "sources" if name == "load_settings" else "sections"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
