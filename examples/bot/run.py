"""Three replicas of the bot; the leader is killed, and the next one answers.

    python -m examples.bot.run

Everything happens in a temporary folder and on free ports; nothing is left behind.
"""

import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from examples.bot.processes import Bots
from rich.console import Console
from rich.table import Table

TIMEOUT_MS = 1_000
QUESTIONS = 60
PAUSE_S = 0.05
#: The leader is killed after so many questions.
KILL_AT = 20


def ask(bots: Bots, console: Console) -> tuple[int, float]:
    """Sends the questions and kills the leader on the way; who was killed, and the takeover."""
    producer = Producer({"bootstrap.servers": bots.bootstrap, "linger.ms": 0})
    killed, took_s = 0, 0.0
    for number in range(QUESTIONS):
        producer.produce("questions", f"question {number}".encode(), key=str(number).encode())
        producer.flush(10)
        if number == KILL_AT:
            killed = bots.leader()
            console.print(f"bot-{killed} leads and answers; kill -9")
            at = bots.replicas[killed].kill()
            took_s = bots.led_after(at, other_than=killed) - at
            console.print(f"bot-{bots.leader()} leads {took_s:.2f} s later")
        time.sleep(PAUSE_S)
    return killed, took_s


def answers_of(bots: Bots) -> dict[int, list[tuple[int, int]]]:
    """Waits until every question is answered; question and term of each answer, by replica."""
    answered: dict[int, list[tuple[int, int]]] = {port: [] for port in bots.replicas}

    def all_answered() -> bool:
        for port in answered:
            answered[port] = [
                (line["answered"], line["term"])
                for who, line in bots.lines
                if who == port and "answered" in line
            ]
        return len({number for given in answered.values() for number, _ in given}) == QUESTIONS

    bots.wait(all_answered, "an answer to every question")
    return answered


def main() -> int:
    console = Console(highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="dovetail-bot-") as folder,
        Bots(Path(folder), timeout_ms=TIMEOUT_MS) as bots,
    ):
        console.print(f"a node and three replicas are up, the timeout is {TIMEOUT_MS} ms")
        bots.leader()
        ask(bots, console)
        answered = answers_of(bots)
    table = Table(title=f"{QUESTIONS} questions, each answered")
    for column in ("replica", "answers", "under term", "questions"):
        table.add_column(column, justify="left" if column == "replica" else "right")
    for port, given in answered.items():
        terms = ", ".join(str(term) for term in sorted({term for _, term in given})) or "-"
        numbers = sorted(number for number, _ in given)
        span = f"{numbers[0]} to {numbers[-1]}" if numbers else "-"
        table.add_row(f"bot-{port}", str(len(given)), terms, span)
    console.print(table)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
