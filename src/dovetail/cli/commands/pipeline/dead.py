"""`dovetail pipeline dead`: jobs that teams gave up; replays or drops them."""

import getpass
import time
from typing import Annotated

import typer

from dovetail.admin.dead.letter import DeadDone, DeadLetter
from dovetail.admin.dead.topics import DeadTopics
from dovetail.admin.kafka import Kafka
from dovetail.admin.pipelines import PipelineReports
from dovetail.admin.topics import topic_ids
from dovetail.cli.client import kafka_of
from dovetail.cli.commands.pipeline.root import PipelineArgument, TeamOption, app, load_pipeline
from dovetail.cli.confirming import confirm
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, YesOption, examples
from dovetail.cli.outcome import ExitCode
from dovetail.cli.output import note, plural, print_done, print_rows
from dovetail.errors import InvalidInput, TopicUnknown

dead_app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: jobs that a team gave up.",
    epilog=examples(
        "dovetail pipeline dead list shop:orders --team parse",
        "dovetail pipeline dead replay shop:orders --team parse 0:42",
    ),
)
app.add_typer(dead_app, name="dead")

#: Dead letters that are looked at for one command.
_LOOK_MAX = 10_000

IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Ids that `dead list` shows.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the team.")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=_LOOK_MAX, help="Show at most this many.")
]


class _Letters:
    """The dead letters of one team, as the functions of `admin` want to be asked for them."""

    def __init__(self, kafka: Kafka, where: str, team: str | None) -> None:
        """Raises `TopicUnknown`."""
        topics = load_pipeline(where).topics(team)
        self.topic = topics.dead
        self._kafka = kafka
        self._ids = topic_ids(kafka, [topics.dead, topics.input])
        if self.topic not in self._ids:
            raise TopicUnknown(f"no topic {self.topic!r}; the pipeline creates it when it starts")
        self._dead = DeadTopics(PipelineReports(lambda: time.time_ns() // 1_000_000))

    def look(self, limit: int) -> list[DeadLetter]:
        return self._dead.look(self._kafka, self._ids, self.topic, limit).letters

    def deal_with(self, ids: list[str] | None, *, everything: bool, action: str) -> DeadDone:
        """Replays or drops some, or all. Raises `InvalidInput`."""
        if bool(ids) == everything:
            raise InvalidInput("give the ids of dead letters, or --all")
        chosen = ids or [letter.id for letter in self.look(_LOOK_MAX)]
        act = self._dead.replay if action == "replay" else self._dead.drop
        return act(self._kafka, self._ids, self.topic, chosen, who=getpass.getuser())


@dead_app.command("list", epilog=examples("dovetail pipeline dead list shop:orders --team parse"))
def dead_list(
    ctx: typer.Context,
    where: PipelineArgument,
    team: TeamOption = None,
    limit: LimitOption = 100,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest dead letters of a team, with the reason of each."""
    letters = _Letters(kafka_of(ctx, bootstrap, timeout), where, team).look(limit)
    rows = [
        {
            "id": one.id,
            "job": (one.key or b"").decode(errors="backslashreplace"),
            "kind": one.kind,
            "attempts": one.attempts,
            "reason": one.reason,
        }
        for one in letters
    ]
    print_rows(as_json, rows, empty="no dead letters")


@dead_app.command(
    "replay",
    epilog=examples(
        "dovetail pipeline dead replay shop:orders --team parse 0:42",
        "dovetail pipeline dead replay shop:orders --team parse --all",
    ),
)
def dead_replay(
    ctx: typer.Context,
    where: PipelineArgument,
    ids: IdsArgument = None,
    team: TeamOption = None,
    everything: AllOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give jobs to their team again, under their old ids."""
    letters = _Letters(kafka_of(ctx, bootstrap, timeout), where, team)
    done = letters.deal_with(ids, everything=everything, action="replay")
    _report(done, "replayed", as_json=as_json)


@dead_app.command(
    "drop", epilog=examples("dovetail pipeline dead drop shop:orders --team parse 0:42 --yes")
)
def dead_drop(
    ctx: typer.Context,
    where: PipelineArgument,
    ids: IdsArgument = None,
    team: TeamOption = None,
    everything: AllOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters for good. Asks first."""
    letters = _Letters(kafka_of(ctx, bootstrap, timeout), where, team)
    confirm("Drop these dead letters for good?", yes=yes)
    done = letters.deal_with(ids, everything=everything, action="drop")
    _report(done, "dropped", as_json=as_json)


def _report(done: DeadDone, action: str, *, as_json: bool) -> None:
    print_done(
        as_json,
        {action: done.done, "left": [one.id for one in done.left]},
        f"{action} {plural(done.done, 'job')}",
    )
    for one in done.left:
        note(f"{one.id}: {one.reason}")
    if done.left:
        raise typer.Exit(ExitCode.FAILED)
