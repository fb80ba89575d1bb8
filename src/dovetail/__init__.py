"""Dovetail: a messaging and job platform.

All ownership in Dovetail is the same thing: a lease with a term, and a store that refuses an old
term. `docs/architecture.md` shows the rooms; the docstring of each package gives its theory.

`connect` and `connect_blocking` open the client of timelines; it is imported on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.timeline import connect, connect_blocking

__all__ = ["DISTRIBUTION", "__version__", "connect", "connect_blocking"]

__version__ = "0.1.0"

#: What `pip install` calls us: the package index has another project under the name of the import.
DISTRIBUTION = "dovetailmq"


def __getattr__(name: str) -> object:
    if name in ("connect", "connect_blocking"):
        from dovetail import timeline

        return getattr(timeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
