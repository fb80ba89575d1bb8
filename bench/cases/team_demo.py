"""How soon `make demo` has its first result: its node, its programs and Spark start at once.

Timed from the start of the program to its line about the first result. It runs to its end, which
has to prove that all went well.
"""

import subprocess
import sys
import time

from bench.run import Run
from bench.table import Line

_CASE = "i demo"
_FIRST_S_MAX = 15.0
_SAID = "the first result is home"
#: Orders come for so long, and as few as a short demo needs.
_ORDERS = ("--minutes", "0.1", "--rate", "4", "--seed", "5")


def measure(run: Run) -> list[Line]:
    run.step("the demo runs once, so that files are warm")
    if not run.quick:
        _first_s()
    run.step("the demo")
    name, took_s = "start to the first result", _first_s()
    return [Line(_CASE, name, took_s, "s", "limit", _FIRST_S_MAX, ratio_max=1.0)]


def _first_s() -> float:
    """Raises `RuntimeError` if the demo does not end well."""
    started, first_s, said = time.perf_counter(), 0.0, []
    command = [sys.executable, "-u", "-m", "examples.shop.demo", *_ORDERS, "--plain"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            said.append(line)
            if _SAID in line and not first_s:
                first_s = time.perf_counter() - started
    if demo.returncode != 0 or not first_s:
        raise RuntimeError(f"the demo ended with {demo.returncode}: {''.join(said[-20:])}")
    return first_s
