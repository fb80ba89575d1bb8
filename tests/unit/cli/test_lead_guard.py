"""The guard of `dovetail lead`, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from dovetail.cli.lead import guard

#: A guard that may not send signals, as to a command that became another user; it says so.
_SCRIPT = """
import os, sys

sys.path.insert(0, sys.argv[1])
import guard

def refuse(group, number):
    print("refused", flush=True)
    raise PermissionError

os.killpg = refuse
sys.exit(guard.run(int(sys.argv[2]), guard.now_ms() + 1e9, 1e9, ["cat"]))
"""


def test_a_command_that_cannot_be_ended_is_waited_for() -> None:
    """S13, R5: the lead is given back when the guard ends, so it must not end before the command
    does, also if that runs as another user."""
    control, feed = os.pipe()
    folder = str(Path(guard.__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _SCRIPT, folder, str(control)],
        pass_fds=(control,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        os.close(control)
        assert process.stdin is not None
        assert process.stdout is not None
        # The program that feeds the guard is gone: the command is to end.
        os.close(feed)
        assert process.stdout.readline() == b"refused\n"
        process.stdin.close()
        assert process.wait(120) == 0
