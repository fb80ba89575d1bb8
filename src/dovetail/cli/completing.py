"""What a shell offers after TAB: names that the node, the settings or a local cluster has.

Somebody waits with a finger on the key: whatever cannot be found at once offers nothing, and no
error is ever shown. The address of the node is that of the command that is being typed: its
`--bootstrap`, else the settings.
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
    """Topics of the node, without those that it keeps for itself."""

    def ask(target: "Target") -> Iterable[str]:
        from dovetail.cli.client import connect, is_internal, topics_of

        return (name for name in topics_of(connect(target), target) if not is_internal(name))

    return _asked(ctx, incomplete, ask)


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups of the node."""

    def ask(target: "Target") -> Iterable[str]:
        from dovetail.cli.client import connect, wait_for

        listed = connect(target).list_consumer_groups(request_timeout=target.timeout_s)
        return (group.group_id for group in wait_for("listing groups", target, listed).valid)

    return _asked(ctx, incomplete, ask)


def timeline_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Timelines of the node."""

    def ask(target: "Target") -> Iterable[str]:
        from dovetail.cli.timeline_client import connect_to, run

        async def listed() -> list[str]:
            async with connect_to(target) as node:
                return [name for name, _ in await node.timelines()]

        return run(target, listed())

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
