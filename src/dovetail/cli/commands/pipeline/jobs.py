"""`dovetail pipeline submit`, `cancel` and `results`: jobs in, outcomes out."""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dovetail.admin.positions import parse_position
from dovetail.cli.commands.pipeline.root import PipelineArgument, TeamOption, app, load_pipeline
from dovetail.cli.options import (
    BootstrapOption,
    JsonLinesOption,
    JsonOption,
    Target,
    TimeoutOption,
    examples,
    target_of,
)
from dovetail.cli.output import note, plural, print_done, print_json_line
from dovetail.cli.printable import json_text, printable
from dovetail.errors import InvalidInput
from dovetail.settings import parse_duration_ms
from dovetail.teams import FrontEnd, Outcome, Pipeline
from dovetail.teams.cancelling import cancel
from dovetail.teams.codecs import Undecodable
from dovetail.teams.envelope import checked_id

#: Lines of standard input that are sent together.
_LINES = 10_000


def front_of(pipeline: Pipeline, target: Target) -> FrontEnd:
    """A front end at the node of a command. Raises `Unreachable` if nothing listens there."""
    target.kafka().check()
    return FrontEnd(pipeline, target.bootstrap, timeout_s=target.timeout_s, config=target.security)


@app.command(
    "submit",
    epilog=examples(
        """dovetail pipeline submit shop:orders '{"customer": "Ada", "lines": []}' --id order-7""",
        "dovetail pipeline submit shop:orders - < orders.jsonl",
        "dovetail pipeline submit shop:orders '7' --wait 30s",
    ),
)
def submit(
    ctx: typer.Context,
    where: PipelineArgument,
    payload: Annotated[
        str,
        typer.Argument(metavar="PAYLOAD", help="As JSON; - reads one from each line of the input."),
    ],
    job_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Job id; default: a new one.")
    ] = None,
    team: TeamOption = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="DURATION", help="Wait for the result, and print it."),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit jobs to a team. An id that the team knows is reported, and not run again."""
    pipeline, target = load_pipeline(where), target_of(ctx, bootstrap, timeout)
    if payload == "-":
        if job_id is not None or wait is not None:
            raise InvalidInput("--id and --wait are for one payload, and - reads many")
        _submit_lines(pipeline, target, team, as_json=as_json)
        return

    value = _value(pipeline, team, payload, "the payload")
    with front_of(pipeline, target) as front:
        if wait is not None:
            seconds = parse_duration_ms(wait) / 1000
            print_json_line(front.ask(value, job_id, team=team, timeout_s=seconds))
            return
        job = front.submit(value, job_id, team=team)
        known = front.is_repetition(job)
    print_done(
        as_json,
        {"id": str(job), "known": known},
        f"job {str(job)!r} was known and is not done again" if known else f"submitted {str(job)!r}",
    )


def _submit_lines(pipeline: Pipeline, target: Target, team: str | None, *, as_json: bool) -> None:
    count = 0
    with front_of(pipeline, target) as front:
        for portion in _portions(pipeline, team):
            count += len(front.submit_many(portion, team=team))
    print_done(as_json, {"jobs": count}, f"submitted {plural(count, 'job')}")


def _portions(pipeline: Pipeline, team: str | None) -> Iterator[list[Any]]:
    portion: list[Any] = []
    for number, line in enumerate(sys.stdin, start=1):
        if line.strip():
            portion.append(_value(pipeline, team, line, f"line {number}"))
        if len(portion) == _LINES:
            yield portion
            portion = []
    if portion:
        yield portion


def _value(pipeline: Pipeline, team: str | None, text: str, what: str) -> Any:
    """A payload as it was typed. Raises `InvalidInput`."""
    codec = pipeline.team(team).codec.name
    if codec == "raw":
        return text.rstrip("\n").encode(errors="surrogateescape")
    if codec == "arrow":
        raise InvalidInput("payloads of this team are Arrow tables; submit them from Python")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{what} is not JSON: {error}. A string needs quotes: '\"text\"'"
        ) from error


@app.command(
    "cancel",
    epilog=examples(
        "dovetail pipeline cancel shop:orders order-7",
        "dovetail pipeline cancel orders order-7 order-8 --reason 'the customer called'",
    ),
)
def cancel_jobs(
    ctx: typer.Context,
    where: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE", help="Module and name, such as shop:orders, or the name alone."
        ),
    ],
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Job ids.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; shown in the outcome.")
    ] = "",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs that wait, are delayed or run: each ends as `cancelled`, unless it has ended."""
    name = load_pipeline(where).name if ":" in where else where
    target = target_of(ctx, bootstrap, timeout)
    target.kafka().check()
    # All are checked before the first one is sent.
    for job_id in [checked_id(one) for one in ids]:
        cancel(
            name,
            job_id,
            target.bootstrap,
            reason=reason,
            timeout_s=target.timeout_s,
            config=target.security,
        )
    print_done(as_json, {"cancelled": ids}, f"told the teams to cancel {plural(len(ids), 'job')}")


@app.command(
    "results",
    epilog=examples(
        "dovetail pipeline results shop:orders --team ship",
        "dovetail pipeline results shop:orders --team ship --follow --from end",
        "dovetail pipeline results shop:orders --from 2026-01-31T08:00 --json",
    ),
)
def results(
    ctx: typer.Context,
    where: PipelineArgument,
    team: TeamOption = None,
    start: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="beginning, end or a time.")
    ] = "beginning",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the end; Ctrl-C stops.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many.")
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Print the outcomes of a team, one per line, including failures."""
    position = parse_position(start)
    if position.kind == "offset":
        raise InvalidInput(f"--from {start}: a topic has many; give beginning, end or a time")
    since = {"beginning": "earliest", "end": "latest"}.get(position.kind, position.number)
    pipeline, target = load_pipeline(where), target_of(ctx, bootstrap, timeout)
    shown = 0
    with front_of(pipeline, target) as front:
        try:
            for outcome in front.results(team, since=since, follow=follow):
                _show(outcome, as_json=as_json)
                shown += 1
                if shown == count:
                    return
        except KeyboardInterrupt:
            if not follow:
                raise
    if not shown and not as_json:
        note("no outcomes yet")


def _show(outcome: Outcome, *, as_json: bool) -> None:
    document = _document(outcome)
    if as_json:
        print_json_line(document)
        return
    if outcome.failure is not None:
        said = f"failed after {plural(outcome.attempts, 'attempt')}: {document['reason']}"
    else:
        said = json_text(document.get("result", document.get("unreadable")))
    sys.stdout.write(printable(f"{outcome.id}\t{said}") + "\n")
    sys.stdout.flush()


def _document(outcome: Outcome) -> dict[str, Any]:
    document: dict[str, Any] = {"id": outcome.id, "team": outcome.team, "ok": outcome.ok}
    if outcome.failure is not None:
        failure = outcome.failure
        about = {"kind": str(failure.kind), "reason": failure.reason}
        return document | about | {"attempts": outcome.attempts}
    try:
        return document | {"result": _plain(outcome.result)}
    except Undecodable as error:
        return document | {"unreadable": str(error)}


def _plain(value: Any) -> Any:
    """A result as JSON can show it: bytes as text, a table as its rows."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.to_pylist() if hasattr(value, "to_pylist") else value
