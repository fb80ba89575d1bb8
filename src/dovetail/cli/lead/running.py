"""Runs one command under one lease: extends its guard's time, and awaits its exit code."""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Final

from dovetail.background import start_task
from dovetail.cli.lead import guard
from dovetail.timeline.client import Lead

#: Parts of a lease: between two feedings of the guard, and from SIGTERM to SIGKILL. The lease ends
#: a quarter after it counts as lost (`timeline/client/leases.py`), so an eighth is left.
FEED: Final = 1 / 40
KILL: Final = 1 / 8


class Running:
    """A command that runs while its lead is valid."""

    def __init__(self, command: list[str], *, lease_s: float) -> None:
        self._command = command
        self._lease_s = lease_s
        self._control: int | None = None
        self._kill_s = float("inf")

    async def run(self, lead: Lead, name: str) -> int:
        """Runs it to its end, or until the lead is lost; its exit code as a shell gives it."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        environment = {**os.environ, "LEAD_NAME": name, "LEAD_TERM": str(lead.term)}
        kill_ms = self._lease_s * KILL * 1000
        try:
            # In a session of its own: a key of the terminal reaches this program alone.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                guard.__file__,
                str(read),
                str(_until_ms(lead)),
                str(kill_ms),
                *self._command,
                pass_fds=(read,),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(read)

        self._control = write
        try:
            ended = start_task(process.wait(), name="cli/lead-command")
            while not ended.done():
                self._tell(f"until {_until_ms(lead)}")
                if time.monotonic() >= self._kill_s:
                    self.send(signal.SIGKILL)
                await asyncio.wait({ended}, timeout=self._lease_s * FEED)
            return ended.result()
        finally:
            self._control = None
            os.close(write)
            # The end of the pipe ends the command, if it has not ended yet.
            await process.wait()

    def send(self, number: int) -> None:
        """Sends a signal to the command, if it runs."""
        self._tell(f"signal {number}")

    def kill_after(self, seconds: float) -> None:
        """Kills the command if it still runs then."""
        self._kill_s = time.monotonic() + seconds

    @property
    def runs(self) -> bool:
        return self._control is not None

    def _tell(self, line: str) -> None:
        if self._control is not None:
            # A guard that is gone has ended the command; one that stands still ends it later.
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._control, f"{line}\n".encode())


def _until_ms(lead: Lead) -> float:
    """Until when the lead is surely ours, by the guard's clock."""
    left_ms = (lead.valid_until_s - time.monotonic()) * 1000 if lead.valid else 0.0
    return guard.now_ms() + left_ms
