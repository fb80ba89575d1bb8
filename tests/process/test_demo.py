"""What `make demo` runs."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_runs_and_loses_nothing() -> None:
    """U1: a node, a real Kafka client, kill -9, and everything is read back."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Everything is there" in done.stdout
    assert done.stdout.count("300,000") >= 2
    assert "Traceback" not in done.stderr
