"""`dovetail lead`: the command line, signals and exit codes."""

import asyncio
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dovetail.background import start_task
from dovetail.cli.lead.running import Running
from dovetail.cli.options import BootstrapOption, Target, TimeoutOption, examples, target_of
from dovetail.cli.output import note
from dovetail.cli.timeline_client import connect_to
from dovetail.errors import InvalidInput
from dovetail.timeline.client.moments import duration_ms

EPILOG = examples(
    "dovetail lead reports -- python -m reports.server",
    "dovetail lead nightly --lease 30s --bootstrap a:9092,b:9092,c:9092 -- ./nightly.sh --all",
)

#: Sent on to the command; the first two also end this program.
_ENDING = (signal.SIGTERM, signal.SIGINT)
_FORWARDED = (*_ENDING, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

#: As shells have it.
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def lead(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name to lead under; the same on every machine.")
    ],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What the leader runs.")
    ],
    lease: Annotated[
        str,
        typer.Option(
            "--lease",
            metavar="DURATION",
            help="Time after which another machine takes over from a dead one.",
        ),
    ] = "10s",
    stop: Annotated[
        str,
        typer.Option(
            "--stop", metavar="DURATION", help="Time that the command has to exit when stopped."
        ),
    ] = "30s",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Run a command on one of several machines: the one that leads under NAME.

    The others stand by, and one of them takes over when this machine dies or the command ends. The
    command gets LEAD_NAME and LEAD_TERM, which grows with every change of leader. If the lease is
    lost, the command is stopped before another machine gets the lease, and this program stands by
    again. SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command. The
    exit code is the command's.
    """
    _check(command)
    target = target_of(ctx, bootstrap, timeout)
    lease_s, stop_s = duration_ms(lease) / 1000, duration_ms(stop) / 1000
    code = asyncio.run(_Standing(target, name, command, lease_s=lease_s, stop_s=stop_s).serve())
    raise typer.Exit(code)


def _check(command: list[str]) -> None:
    """Ends with a shell's exit code if the command cannot be run, before anybody waits for it."""
    if not command:
        raise InvalidInput("no command given; write it after --")
    for part in command:
        if "\0" in part:
            raise InvalidInput(f"{part!r} holds NUL, which no command can take")
    if shutil.which(command[0]) is None:
        there = os.sep in command[0] and Path(command[0]).exists()
        note(f"{command[0]}: {'not executable' if there else 'command not found'}")
        raise typer.Exit(NOT_EXECUTABLE if there else NOT_FOUND)


class _Standing:
    """Stands by, leads, and stands by again."""

    def __init__(
        self, target: Target, name: str, command: list[str], *, lease_s: float, stop_s: float
    ) -> None:
        self._target, self._name = target, name
        self._lease_s, self._stop_s = lease_s, stop_s
        self._running = Running(command, lease_s=lease_s)
        self._serving: asyncio.Task[int] | None = None
        self._stopping = False

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        self._serving = start_task(self._serve(), name="cli/lead", expected=(Exception,))
        for number in _FORWARDED:
            loop.add_signal_handler(number, partial(self._on_signal, number))
        try:
            return await self._serving
        except asyncio.CancelledError:
            # Stopped while standing by: there was nothing to end.
            return 0

    async def _serve(self) -> int:
        async with connect_to(self._target) as client:
            while True:
                note(f"standing by for {self._name!r}")
                async with client.lead(self._name, lease=self._lease_s) as lead:
                    note(f"leading {self._name!r} under term {lead.term}")
                    code = await self._running.run(lead, self._name)
                    lost = not lead.valid
                if not lost or self._stopping:
                    return code
                note(f"the lead of {self._name!r} was lost, and the command was stopped ({code})")

    def _on_signal(self, number: int) -> None:
        if not self._running.runs:
            if number in _ENDING and self._serving is not None:
                self._serving.cancel()
            return
        if number not in _ENDING:
            self._running.send(number)
            return

        # The second one means it.
        self._running.send(signal.SIGKILL if self._stopping else number)
        if not self._stopping:
            self._stopping = True
            self._running.kill_after(self._stop_s)
