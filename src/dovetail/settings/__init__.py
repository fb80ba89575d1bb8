"""Settings: one frozen object, and the origin of every value.

A setting has one name, `section.name`, and can be given in four places. The first in this list that
gives it wins:

    place         spelled                              example
    flag          --set section.name=value, or a       --set log.retention_ms=2d
                  command's own flag for it            --port 9092
    environment   DOVETAIL_<SECTION>_<NAME>            DOVETAIL_LOG_RETENTION_MS=2d
    file          [section] name = value (TOML)        [log] retention_ms = "2d"
    default       this package                         7d

No section has an underscore in its name, so the first underscore after `DOVETAIL_` ends it. The
file is `--config`, else `DOVETAIL_CONFIG`, else `dovetail.toml` in the working folder if it exists.
An unknown name is an `InvalidSetting`, in every place, with the nearest known one in its message: a
misspelt limit must not silently be no limit. A variable `DOVETAIL_*` is therefore either a setting
or `DOVETAIL_CONFIG`.

Durations are written `7d`, `90s`, `250ms`, or as an integer in the unit that the name ends with;
sizes `64MiB`, `1GB`, or an integer of bytes.

    given.py         flag, environment and file, and which one wins
    sources.py       the effective settings: checks what was given
    sections.py      all sections together, and the origin of each value
    kinds.py         types of settings: durations, sizes, ports, secrets
    quantity.py      parses and formats durations and sizes
    reference.py     `docs/settings.md`, made from the code
    node.py          section `node`: the node's number, name and folder
    coordination.py  section `coordination`: embedded or etcd
    kafka.py         section `kafka`: the listener for Kafka clients
    http.py          section `http`: health, metrics, console
    storage.py       section `storage`: the storage node
    log.py           section `log`: topics and partitions
    groups.py        section `groups`: consumer groups
    outbox.py        section `outbox`: publishing, and the relay
    stream.py        section `stream`: a replica of a shared stream
    timeline.py      section `timeline`: messages that are due at a time
    metrics.py       section `metrics`: of a relay and a pipeline's driver
    tracing.py       section `tracing`: where spans go
    transactions.py  section `transactions`: transactional producers
    logging.py       section `logging`: what a process logs
    client.py        section `client`: how the command line reaches a node
    security.py      section `security`: TLS, login, access rules
"""

import importlib
from typing import TYPE_CHECKING

from dovetail.settings.given import Flag, parse_assignment
from dovetail.settings.quantity import (
    format_bytes,
    format_duration_ms,
    parse_bytes,
    parse_duration_ms,
)

if TYPE_CHECKING:
    from dovetail.settings.coordination import CoordinationSettings
    from dovetail.settings.http import HttpSettings
    from dovetail.settings.kafka import KafkaSettings
    from dovetail.settings.log import LogSettings
    from dovetail.settings.sections import Settings
    from dovetail.settings.security import SecuritySettings
    from dovetail.settings.sources import load_settings

__all__ = [
    "CoordinationSettings",
    "Flag",
    "HttpSettings",
    "KafkaSettings",
    "LogSettings",
    "SecuritySettings",
    "Settings",
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
