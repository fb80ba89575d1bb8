"""The example: three replicas of a bot, of which the leader is killed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_bot_goes_on_answering() -> None:
    """S1, S8, S9: two replicas have answered, under two terms, and every question has an answer."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.bot.run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each answered" in done.stdout
    rows = re.findall(r"bot-\d+ │ +(\d+) │ +(\S+) │", done.stdout)
    answered = [(int(count), terms) for count, terms in rows if int(count)]
    assert len(answered) == 2
    assert len({terms for _, terms in answered}) == 2
    assert sum(count for count, _ in answered) >= 60
