"""One replica in a process of its own; says in lines of JSON what it handles and what it is.

python replica_child.py '{"bootstrap": ..., "topic": ..., "settings": {...}}'
"""

import asyncio
import faulthandler
import json
import signal
import sys
from pathlib import Path
from typing import Any

from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.election import (
    Algorithm,
    ElectionMetrics,
    HttpTransport,
    Leadership,
    MemberStatus,
    member_on_kafka,
)
from dovetail.logging import configure_logging
from dovetail.stream import Event, KafkaSource, SharedStream, StreamSettings, Takeover
from dovetail.stream.dead_letters import KafkaDeadLetters
from dovetail.stream.health import health_routes


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Unprintable(Exception):
    """An error as foreign code may raise it."""

    def __str__(self) -> str:
        raise ValueError("there is no text")


async def handle(event: Event, leadership: Leadership) -> None:
    """Poison, one event in a hundred, is said to be handled, and raises behind that."""
    say(kind="handled", lane=event.lane, offset=event.offset, term=leadership.term)
    if event.value.endswith(b"49"):
        raise Unprintable
    if event.value.endswith(b"99"):
        raise asyncio.CancelledError


def on_change(status: MemberStatus) -> None:
    say(kind="role", role=status.role.value, term=status.term, leader=status.leader)


def settings_of(given: dict[str, Any]) -> StreamSettings:
    made = {
        **given,
        "algorithm": Algorithm[given["algorithm"]],
        "takeover": Takeover(given["takeover"]),
        "vote_path": Path(given["vote_path"]),
    }
    return StreamSettings(**made)


async def main() -> None:
    given = json.loads(sys.argv[1])
    configure_logging(format="text")
    settings = settings_of(given["settings"])
    coordinator = None
    if given.get("etcd"):
        etcd = EtcdSettings(
            endpoints=(given["etcd"],), attempt_timeout_ms=500, request_timeout_ms=1_000
        )
        coordinator = await EtcdCoordinator.open(etcd)
    metrics = ElectionMetrics()
    made: list[SharedStream] = []

    def health() -> tuple[bool, dict[str, Any]]:
        return made[0].health()

    # The stream and the shared log are reached through gates of their own, to be cut one by one.
    member = member_on_kafka(
        settings,
        given["log_bootstrap"],
        transport=HttpTransport(settings, routes=health_routes(health, metrics.registry)),
        coordinator=coordinator,
        metrics=metrics,
    )
    member.on_change.append(on_change)
    source = KafkaSource(given["stream_bootstrap"], given["topic"], timeout_ms=settings.timeout_ms)
    dead_letters = None
    if settings.dead_letters_topic:
        dead_letters = KafkaDeadLetters(
            given["stream_bootstrap"], settings.dead_letters_topic, timeout_ms=settings.timeout_ms
        )
    made.append(
        SharedStream(source, handle, member=member, settings=settings, dead_letters=dead_letters)
    )
    async with made[0]:
        say(kind="ready", member=settings.endpoint)
        await asyncio.Event().wait()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    asyncio.run(main())
