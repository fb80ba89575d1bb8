"""R5: the facade for programs without asyncio: its ends, in every order that a program finds."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dovetail.blocking import Blocking
from dovetail.errors import InvalidInput

DEADLINE_S = 60.0


@asynccontextmanager
async def _something() -> AsyncIterator[str]:
    yield "something"


async def _answer() -> int:
    return 7


def test_a_forked_process_leaves_the_block() -> None:
    """R5: it waited for ever for a loop whose thread is in the other process."""
    program = """
import asyncio, os, sys
from tests.unit.test_blocking import Blocking, _answer, _something
with Blocking(_something) as blocking:
    pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    _run(program)


def test_a_function_that_hangs_in_a_thread_does_not_hold_up_the_exit() -> None:
    """R5: the interpreter waited for a handler without an end, and so for ever."""
    program = """
import asyncio, threading
import dovetail.blocking
from tests.unit.test_blocking import Blocking, _something
dovetail.blocking.END_S_MAX = 0.1
begun = threading.Event()
def hang():
    begun.set()
    threading.Event().wait()
with Blocking(_something) as blocking:
    blocking.submit(asyncio.to_thread(hang))
    begun.wait()
"""
    _run(program)


def test_it_is_open_once() -> None:
    """R5: a second `with` ran the loop in two threads, and the inner one closed the outer."""
    with Blocking(_something) as blocking:
        with pytest.raises(InvalidInput, match="open already"), blocking:
            pass
        assert blocking.call(_answer()) == 7
    with pytest.raises(InvalidInput, match="closed"), blocking:
        pass


def test_a_call_before_the_block_is_refused() -> None:
    """R5: it waited for ever for a loop that did not run."""
    blocking = Blocking(_something)
    with pytest.raises(RuntimeError, match="not connected"):
        blocking.call(_answer())
    blocking.__exit__(None, None, None)


def _run(program: str) -> None:
    """A process that ends by itself."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=DEADLINE_S, check=True)
