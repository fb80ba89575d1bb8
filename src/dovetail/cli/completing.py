"""Completion after TAB: names that the node, the settings or a local cluster has.

The user waits for it, so a name that cannot be found at once is not offered, and no error is shown.
The node is the one that the typed command would use: its `--bootstrap`, else the settings.

Every command imports this module, so each function imports what it needs when TAB is pressed.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.cli.options import Target

#: A node on this machine or in this network answers within milliseconds.
_ANSWER_MS_MAX = 1_500


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _asked(
    ctx: typer.Context, incomplete: str, ask: "Callable[[Target], Iterable[str]]"
) -> list[str]:
    from dovetail.cli.options import target_of

    try:
        target = target_of(ctx, ctx.params.get("bootstrap"), f"{_ANSWER_MS_MAX}ms")
        return _offered(ask(target), incomplete)
    except (DovetailError, OSError):
        return []


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the node, without internal ones."""

    def ask(target: "Target") -> Iterable[str]:
        from dovetail.admin.kafka import is_internal

        kafka = target.kafka()
        kafka.check()
        return (name for name in kafka.metadata().topics if not is_internal(name))

    return _asked(ctx, incomplete, ask)


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups of the node."""

    def ask(target: "Target") -> Iterable[str]:
        from dovetail.admin.groups import group_names

        kafka = target.kafka()
        kafka.check()
        return group_names(kafka)

    return _asked(ctx, incomplete, ask)


def timeline_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Timelines of the node."""

    def ask(target: "Target") -> Iterable[str]:
        from dovetail.cli.timeline_client import ask as ask_timelines

        return [name for name, _ in ask_timelines(target, lambda client: client.timelines())]

    return _asked(ctx, incomplete, ask)


def setting_names(incomplete: str) -> list[str]:
    """`section.name=` of every setting, for `--set`."""
    from dovetail.settings import Settings

    return _offered((f"{shown.name}=" for shown in Settings().shown()), incomplete)


def cluster_node_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The processes of the cluster on this machine."""
    from dovetail.cli.local_cluster.folder import ClusterFolder

    try:
        plan = ClusterFolder(ctx.params["data_dir"]).plan()
    except (DovetailError, OSError):
        return []
    return _offered((process.name for process in plan.processes), incomplete)
