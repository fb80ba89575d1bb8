"""One replica in a process of its own; says in lines of JSON what it handles and what it is.

python replica_child.py '{"bootstrap": ..., "topic": ..., "settings": {...}}'
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.election import (
    Algorithm,
    ClusterMember,
    HttpTransport,
    KafkaSharedLog,
    Leadership,
    MemberStatus,
    StreamMetrics,
    StreamSettings,
    Takeover,
    VoteFile,
)
from dovetail.election.health import health_routes
from dovetail.logging import configure_logging
from dovetail.stream import Event, KafkaSource, SharedStream
from dovetail.stream.stream import campaigner_of


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def handle(event: Event, leadership: Leadership) -> None:
    say(kind="handled", lane=event.lane, offset=event.offset, term=leadership.term)


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
    metrics = StreamMetrics()
    made: list[SharedStream] = []

    def health() -> tuple[bool, dict[str, Any]]:
        return made[0].health()

    # The stream and the shared log are reached through gates of their own, to be cut one by one.
    member = ClusterMember(
        settings.endpoint,
        algorithm=settings.algorithm,
        times=settings.times,
        shared_log=KafkaSharedLog(
            given["log_bootstrap"],
            topic=settings.coordination_stream_id,
            environment=settings.environment_identifier,
            timeout_ms=settings.timeout_ms,
        ),
        transport=HttpTransport(settings, routes=health_routes(health, metrics.registry)),
        vote_file=VoteFile(settings.vote_path),
        campaigner=campaigner_of(settings, coordinator),
        metrics=metrics,
    )
    member.on_change.append(on_change)
    source = KafkaSource(given["stream_bootstrap"], given["topic"], timeout_ms=settings.timeout_ms)
    made.append(SharedStream(source, handle, member=member, settings=settings))
    async with made[0]:
        say(kind="ready", member=settings.endpoint)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
