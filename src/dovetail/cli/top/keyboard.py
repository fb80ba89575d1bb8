"""Single keys from a terminal, without waiting for the end of a line."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self


class Keyboard:
    """Gives keys as they are pressed, inside `with`; the terminal is as before afterwards.

    Where standard input is no terminal there are no keys, and waiting for one only waits.
    """

    def __init__(self) -> None:
        self._handle = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if self._handle is not None:
            self._before = termios.tcgetattr(self._handle)
            # Ctrl-C stays a signal; only lines and echo are switched off.
            tty.setcbreak(self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle is not None and self._before is not None:
            termios.tcsetattr(self._handle, termios.TCSADRAIN, self._before)

    def keys(self, *, wait_s: float) -> str:
        """What was pressed, at once if something was; empty after `wait_s`."""
        handles = [] if self._handle is None else [self._handle]
        ready, _, _ = select.select(handles, [], [], wait_s)
        if not ready or self._handle is None:
            return ""
        read = os.read(self._handle, 64)
        # The end of the input: the terminal is gone.
        return read.decode(errors="ignore") if read else "q"
