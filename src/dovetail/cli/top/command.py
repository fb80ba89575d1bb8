"""`dovetail top`: the command, and the loop of the live view."""

import json
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    settings_of,
    target_of,
)
from dovetail.cli.top.picture import Look, Part, Table, as_json, pictured
from dovetail.cli.top.view import Choice, pressed, rendered
from dovetail.errors import InvalidInput

if TYPE_CHECKING:
    from dovetail.cli.options import Target
    from dovetail.cli.top.looking import Looker, Looks

EPILOG = examples(
    "dovetail top",
    "dovetail top --bootstrap queue.example.org:9092 --http http://queue.example.org:9080",
    "dovetail top --once",
    "dovetail top --json --interval 5s",
)

#: A shorter interval would measure the looking.
_INTERVAL_MS_MIN = 100

#: Between two checks whether a key was pressed or an answer came.
_TICK_S = 0.05


def top(
    ctx: typer.Context,
    interval: Annotated[
        str, typer.Option("--interval", metavar="DURATION", help="Time between two refreshes.")
    ] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Print once, and exit.")] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="URL", help="HTTP of a node; default: http.host and .port."),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cluster live: nodes, topics, groups, timelines, streams, pipelines.

    Rates are measured between two refreshes. Keys: q quits, p pauses, s sorts, h shows all of them.
    With --json, prints a line of JSON for every refresh. If a node goes away, waits for it.
    """
    from dovetail.admin.node_http import NodeHttp
    from dovetail.cli.output import note
    from dovetail.cli.top.looking import Looker
    from dovetail.settings import parse_duration_ms

    interval_ms = parse_duration_ms(interval)
    if interval_ms < _INTERVAL_MS_MIN:
        raise InvalidInput(f"--interval {interval} is too short; at least {_INTERVAL_MS_MIN}ms")
    target = target_of(ctx, bootstrap, timeout)
    # A wrong address fails at once; only a node that was there is waited for.
    target.kafka().check()
    settings = settings_of(ctx)
    named = bool(bootstrap or settings.client.bootstrap)
    asked = NodeHttp.beside(settings, named=named, url=http)
    if asked is None and settings.http.enabled and not as_json:
        note("nodes and streams are left out: name the HTTP of a node of this cluster with --http")

    looker = Looker(target, asked)
    loop = _Loop(looker, target, interval_ms / 1000)
    try:
        if once or as_json or not sys.stdout.isatty():
            loop.printed(once=once or not as_json, json_lines=as_json)
        else:
            loop.live()
    except KeyboardInterrupt:
        return
    finally:
        looker.close()


class _Loop:
    """Looks again and again, and keeps the last good look of every part."""

    def __init__(self, looker: "Looker", target: "Target", interval_s: float) -> None:
        self._looker = looker
        self._where = target.bootstrap
        self._interval_s = interval_s
        self._good: dict[Part, Look] = {}

    def printed(self, *, once: bool, json_lines: bool) -> None:
        """Without a screen: one picture, or a line for each look."""
        from dovetail.cli.output import answers, print_json

        self._keep(self._looker.look())
        while True:
            time.sleep(self._interval_s)
            tables = self._picture(self._looker.look(), internal=False)
            if json_lines and once:
                print_json(as_json(tables, at=_now()))
            elif json_lines:
                sys.stdout.write(json.dumps(as_json(tables, at=_now())) + "\n")
                sys.stdout.flush()
            else:
                answers().print(
                    rendered(tables, Choice(), where=self._where, at=_now(), height=None)
                )
            if once:
                return

    def live(self) -> None:
        """The whole terminal, until somebody quits."""
        from rich.live import Live

        from dovetail.cli.output import answers
        from dovetail.cli.top.keyboard import Keyboard

        console = answers()
        choice, due_s = Choice(), 0.0
        looks: Looks = {}
        shown: tuple[Table, ...] = ()
        asked: Future[Looks] | None = None
        pool = ThreadPoolExecutor(1, thread_name_prefix="top-live")
        try:
            with (
                Keyboard() as keyboard,
                Live(console=console, screen=True, auto_refresh=False) as live,
            ):
                while not choice.done:
                    before = choice
                    for key in keyboard.keys(wait_s=_TICK_S):
                        choice = pressed(choice, key)

                    if asked is None and not choice.paused and time.monotonic() >= due_s:
                        due_s = time.monotonic() + self._interval_s
                        asked = pool.submit(self._looker.look)
                    fresh = asked is not None and asked.done()
                    if asked is not None and fresh:
                        looks, asked = asked.result(), None
                        shown = self._picture(looks, internal=True)

                    if fresh or choice != before:
                        live.update(
                            rendered(
                                _chosen(shown, choice),
                                choice,
                                where=self._where,
                                at=_now(),
                                height=console.height,
                            ),
                            refresh=True,
                        )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _picture(self, looks: "Looks", *, internal: bool) -> tuple[Table, ...]:
        tables = pictured(self._good, looks, internal=internal)
        self._keep(looks)
        return tables

    def _keep(self, looks: "Looks") -> None:
        self._good |= {part: look for part, look in looks.items() if not look.trouble}


def _chosen(tables: tuple[Table, ...], choice: Choice) -> tuple[Table, ...]:
    from dovetail.cli.top.picture import without_internal

    return tables if choice.internal else tuple(map(without_internal, tables))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
