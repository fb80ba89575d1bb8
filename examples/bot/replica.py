"""One replica of the bot: answers every question, while it leads.

    python -m examples.bot.replica --bootstrap 127.0.0.1:9092 --port 8081

Start as many as you like, each with a port of its own. What happens is printed as lines of JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

from confluent_kafka import Producer

from dovetail.logging import configure_logging
from dovetail.stream import (
    Algorithm,
    Event,
    Leadership,
    MemberStatus,
    SharedStream,
    StreamSettings,
    Takeover,
)

#: Where the secret is read from: a command line is seen by everybody on the machine.
SECRET_VARIABLE = "BOT_SECRET"


def say(**line: object) -> None:
    """One line of JSON, with the time."""
    print(json.dumps({"at": time.time(), **line}), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--questions", default="questions", help="topic to read")
    parser.add_argument("--answers", default="answers", help="topic to write")
    parser.add_argument("--shared-log", default="bots", help="topic of the shared log")
    parser.add_argument("--port", type=int, required=True, help="where the others reach this one")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the vote is kept")
    parser.add_argument("--timeout-ms", type=int, default=1_000)
    parser.add_argument("--algorithm", choices=["MAJORITY", "BULLY"], default="MAJORITY")
    parser.add_argument("--takeover", choices=["skip", "resume"], default="resume")
    return parser.parse_args()


def settings_of(given: argparse.Namespace) -> StreamSettings:
    return StreamSettings(
        coordination_stream_id=given.shared_log,
        endpoint_host_and_port=f"127.0.0.1:{given.port}",
        algorithm=Algorithm(given.algorithm),
        takeover=Takeover(given.takeover),
        timeout_ms=given.timeout_ms,
        shared_secret=os.environ[SECRET_VARIABLE],
        vote_path=given.folder / f"bot-{given.port}.vote",
    )


async def run(given: argparse.Namespace) -> None:
    producer = Producer({"bootstrap.servers": given.bootstrap, "linger.ms": 0, "log_level": 0})
    name = f"bot-{given.port}"

    def answer(event: Event, leadership: Leadership) -> None:
        """The bot itself. The term goes with the answer, so that a reader can tell."""
        text = f"{name}: you said {event.value.decode(errors='replace')!r}"
        headers: list[tuple[str, str | bytes | None]] = [("term", str(leadership.term))]
        producer.produce(given.answers, text.encode(), key=event.key, headers=headers)
        if producer.flush(10):
            raise TimeoutError("the answer was not acknowledged within 10 s")
        say(answered=event.offset, term=leadership.term)

    def changed(status: MemberStatus) -> None:
        say(role=status.role.value, term=status.term, leader=status.leader)

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stream = SharedStream.on_kafka(given.bootstrap, given.questions, answer, settings_of(given))
    stream.member.on_change.append(changed)
    async with stream:
        say(ready=name)
        await stopped.wait()


if __name__ == "__main__":
    configure_logging(format="text", level="warning")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(arguments()))
