"""`dovetail stream`: the members of a shared stream, who leads, and how far it is."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    settings_of,
    target_of,
)
from dovetail.errors import InvalidSetting, NotFound

if TYPE_CHECKING:
    from dovetail.cli.options import Target
    from dovetail.election.fold import LogState
    from dovetail.settings.stream import SharedStreamSettings

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail stream status --log bots"),
)

#: Elections that are shown to a person; --json shows all that the log remembers.
_ELECTIONS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Where:
    """Which cluster in which log."""

    topic: str
    environment: str


@app.command(
    "status",
    epilog=examples(
        "dovetail stream status --log bots",
        "dovetail stream status --log bots --environment prod --json",
    ),
)
def status(
    ctx: typer.Context,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="TOPIC",
            help="Topic of the shared log; default: stream.coordination_stream_id.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            metavar="NAME",
            help="Name of the cluster; default: stream.environment_identifier.",
        ),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show members, leader, term, lag and the last elections, as the shared log has them."""
    from dovetail.cli.client import connect
    from dovetail.cli.output import print_json

    target = target_of(ctx, bootstrap, timeout)
    section = settings_of(ctx).stream
    where = _Where(
        log or section.coordination_stream_id, environment or section.environment_identifier
    )
    if not where.topic:
        raise InvalidSetting(
            "no shared log is named; give --log TOPIC, or set stream.coordination_stream_id"
        )
    connect(target)
    facts = asyncio.run(_read(target, where, section))
    if not facts["members"] and facts["leader"] is None:
        raise NotFound(
            f"nobody of environment {where.environment!r} has written to the shared log "
            f"{where.topic!r}; another one may be meant, see --environment"
        )
    facts["positions"] = _positions(target, facts)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    from dovetail.cli.output import note, print_table

    print_table(
        ["environment", "leader", "term", "heard s ago", "source", "lag"],
        [
            (
                facts["environment"],
                facts["leader"],
                facts["term"],
                facts["leader_heard_s_ago"],
                facts["source"],
                sum(row["lag"] or 0 for row in facts["positions"]),
            )
        ],
    )
    columns = ["member", "counted", "leads", "heard s ago", "asked to show itself"]
    print_table(columns, [tuple(row.values()) for row in facts["members"]])
    print_table(
        ["partition", "committed", "end", "lag"],
        [tuple(row.values()) for row in facts["positions"]],
    )
    print_table(
        ["election of term", "won by", "at"],
        [tuple(row.values()) for row in facts["elections"][:_ELECTIONS_SHOWN]],
    )
    if facts["leader"] not in [row["member"] for row in facts["members"] if row["counted"]]:
        note("the last leader is gone, and nobody has claimed a higher term yet")


async def _read(target: "Target", where: _Where, section: "SharedStreamSettings") -> dict[str, Any]:
    from dovetail.clock import SystemClock
    from dovetail.election import KafkaSharedLog

    log = KafkaSharedLog(
        target.bootstrap,
        topic=where.topic,
        environment=where.environment,
        timeout_ms=int(target.timeout_s * 1000),
        config=target.security,
        create=False,
    )
    await log.open(lambda _: None)
    try:
        return _facts(log.state, where, section, SystemClock().monotonic_ms())
    finally:
        await log.close()


def _facts(
    state: "LogState", where: _Where, section: "SharedStreamSettings", now_ms: float
) -> dict[str, Any]:
    from dovetail.election.election import GRACE_TIMEOUTS

    counted = set(
        state.counted(
            now_ms=now_ms,
            interval_ms=section.participant_write_interval_millis,
            grace_ms=GRACE_TIMEOUTS * section.timeout_ms,
        )
    )
    return {
        "log": where.topic,
        "environment": where.environment,
        "leader": state.leader,
        "term": state.term,
        "leader_heard_s_ago": _ago(state.leader_heard_ms, now_ms) if state.leader else None,
        "source": state.source,
        "position": state.position or {},
        "members": [
            {
                "member": name,
                "counted": name in counted,
                "leads": name == state.leader,
                "heard_s_ago": _ago(heard.moment.monotonic_ms, now_ms),
                "challenged": heard.challenged_ms is not None,
            }
            for name, heard in state.members()
        ],
        "elections": [
            {"term": past.term, "leader": past.member, "at": _time_text(past.wall_ms)}
            for past in reversed(state.elections)
        ],
    }


def _ago(then_ms: float, now_ms: float) -> float:
    return round((now_ms - then_ms) / 1000, 1)


def _time_text(wall_ms: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(wall_ms / 1000).astimezone().isoformat(timespec="milliseconds")


def _positions(target: "Target", facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What is committed, and how far the stream has gone since; without the topic no lag."""
    from dovetail.cli.client import bounds_of, connect, partitions_of, topics_of

    admin = connect(target)
    position = facts.pop("position")
    topics = topics_of(admin, target)
    known = topics.get(facts["source"] or "")
    ends = {} if known is None else bounds_of(admin, target, partitions_of(known))
    lanes = sorted({*position, *(partition for _, partition in ends)})
    rows = []
    for lane in lanes:
        _, end = ends.get((facts["source"], lane), (None, None))
        committed = position.get(lane)
        lag = None if end is None else max(0, end - (committed or 0))
        rows.append({"partition": lane, "committed": committed, "end": end, "lag": lag})
    return rows
