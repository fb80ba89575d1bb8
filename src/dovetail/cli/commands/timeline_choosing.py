"""Selects the messages or dead letters for a command of `dovetail timeline`: by id or by filter.

    @app.command("cancel")
    @choosing()
    def cancel(chosen: Chosen, yes: YesOption = False) -> None: ...

The command line then has the argument and the options of `_chosen` beside those of the command.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from dovetail.cli.commands.timeline import TimelineArgument
from dovetail.cli.options import BootstrapOption, JsonOption, Target, TimeoutOption, target_of
from dovetail.cli.outcome import ExitCode
from dovetail.cli.output import plural, print_done
from dovetail.cli.timeline_client import ask
from dovetail.errors import InvalidInput
from dovetail.timeline.client import Dovetail, Timeline
from dovetail.timeline.client.moments import duration_ms
from dovetail.timeline.engine.where import SelectAction, Where
from dovetail.timeline.message import Status

#: Ids of one request.
_BATCH = 1_000

ByIds = Callable[[Timeline, list[int]], Awaitable[list[Status]]]
Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a command is about, and how it answers."""

    target: Target
    timeline: str
    ids: list[int]
    where: Where
    dry_run: bool
    as_json: bool

    def check(self, *, everything: bool) -> None:
        """Raises `InvalidInput` unless it is by ids, by a filter, or all."""
        if [bool(self.ids), not self.where.is_empty, everything].count(True) != 1:
            raise InvalidInput(
                "give ids, or say which ones by --key-prefix, --header, --older, or of dead "
                "letters --reason; replay also takes --all"
            )

    def count(self, action: SelectAction) -> int:
        """How many an action would be about."""
        if self.ids:
            return len(self.ids)
        return self._select("preview", dead=action in ("replay", "drop"), due_ms=0)[0]

    def change(
        self, action: SelectAction, by_ids: ByIds, *, verb: str, noun: str, due_ms: int = 0
    ) -> None:
        """Does it and prints what became of them. Exit code 1 if some could not be changed."""
        if self.dry_run:
            matched = self.count(action)
            said = f"{plural(matched, noun)} would be {verb}"
            print_done(self.as_json, {"matched": matched}, said)
            return
        if self.ids:
            matched, done = len(self.ids), self._change_ids(by_ids)
        else:
            matched, done = self._select(action, dead=action in ("replay", "drop"), due_ms=due_ms)

        left = matched - done
        rest = f"; {left} could not be {verb}" if left else ""
        key = "dropped" if action == "drop" else verb
        said = f"{verb} {plural(done, noun)}{rest}"
        print_done(self.as_json, {key: done, "left": left}, said)
        if left:
            raise typer.Exit(ExitCode.FAILED)

    def _change_ids(self, by_ids: ByIds) -> int:
        async def change(client: Dovetail) -> int:
            found, done = client.timeline(self.timeline), 0
            for start in range(0, len(self.ids), _BATCH):
                statuses = await by_ids(found, self.ids[start : start + _BATCH])
                done += statuses.count(Status.OK)
            return done

        return ask(self.target, change)

    def _select(self, action: SelectAction, *, dead: bool, due_ms: int) -> tuple[int, int]:
        """How many fit the filter, and how many were changed."""

        async def select(client: Dovetail) -> tuple[int, int]:
            matched = done = 0
            pages = client.timeline(self.timeline).select(
                action, self.where, dead=dead, due_ms=due_ms
            )
            async for page in pages:
                matched, done = matched + page.matched, done + page.done
            return matched, done

        return ask(self.target, select)


def _chosen(
    ctx: typer.Context,
    timeline: TimelineArgument,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", help="Which ones, by id.")
    ] = None,
    key_prefix: Annotated[
        str, typer.Option("--key-prefix", metavar="TEXT", help="Those whose key begins with this.")
    ] = "",
    header: Annotated[
        str,
        typer.Option("--header", metavar="NAME[=VALUE]", help="Those that have this header."),
    ] = "",
    older: Annotated[
        str,
        typer.Option(
            "--older", metavar="DURATION", help="Those due, or dead, for at least this long."
        ),
    ] = "",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Those whose reason contains this.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the matches, and change nothing.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> Chosen:
    """The arguments and options of every such command. Raises `InvalidInput`, `InvalidSetting`."""
    name, equals, value = header.partition("=")
    where = Where(
        key_prefix=key_prefix,
        header=name,
        header_value=value.encode() if equals else None,
        reason=reason,
        older_ms=duration_ms(older) if older else 0,
    )
    target = target_of(ctx, bootstrap, timeout)
    return Chosen(target, timeline, ids or [], where, dry_run, as_json)


#: Parameters before those of the command itself; the rest comes behind them.
_FIRST = ("ctx", "timeline", "ids")
#: Has no meaning for messages that wait.
_OF_THE_DEAD = "reason"


def choosing(*, dead: bool = False) -> Callable[[Command], Command]:
    """Gives a command what `_chosen` takes; it gets the result as its first argument."""

    def wrap(command: Command) -> Command:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        shared = inspect.signature(_chosen, eval_str=True).parameters
        taken = {name: each for name, each in shared.items() if dead or name != _OF_THE_DEAD}
        first = [taken[name] for name in _FIRST]
        last = [each for name, each in taken.items() if name not in _FIRST]

        @wraps(command)
        def run(**given: Any) -> None:
            chosen = _chosen(**{name: given.pop(name) for name in taken})
            chosen.check(everything=given.get("everything", False))
            command(chosen, **given)

        parameters = [*first, *own, *last]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return wrap
