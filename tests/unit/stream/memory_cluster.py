"""Members of one process: real members on a log, a network and a stream in memory."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from dovetail.election import (
    Algorithm,
    ClusterMember,
    Leadership,
    MemberName,
    MemoryLog,
    MemoryNetwork,
    MemorySharedLog,
    MemoryTransport,
    VoteFile,
)
from dovetail.stream import Event, MemorySource, SharedStream, StreamSettings, Takeover
from dovetail.stream.handler import Handler

#: Short, and long against a busy machine's hiccups.
TIMEOUT_MS = 150
DEADLINE_S = 60.0


class MemoryCluster:
    """Makes members and streams; `handled` is who handled what, under which term."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.network = MemoryNetwork()
        self.log = MemoryLog()
        self.source = MemorySource(lanes=2)
        self.members: dict[str, ClusterMember] = {}
        self.logs: dict[str, MemorySharedLog] = {}
        self.streams: dict[str, SharedStream] = {}
        self.handled: list[tuple[str, Event, int]] = []
        self.changed = asyncio.Event()
        self._folder = folder
        self._given = given
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "MemoryCluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def settings(self, name: str) -> StreamSettings:
        return StreamSettings(
            **{
                "coordination_stream_id": "shared",
                "endpoint_host_and_port": f"{name}:1",
                "algorithm": Algorithm.MAJORITY,
                "timeout_ms": TIMEOUT_MS,
                "takeover": Takeover.RESUME,
                "report_interval_ms": 50,
                **self._given,
            }
        )

    def member(self, name: str) -> ClusterMember:
        """A member that is not started yet."""
        settings = self.settings(name)
        self.logs[name] = MemorySharedLog(self.log)
        member = ClusterMember(
            MemberName(name),
            algorithm=settings.algorithm,
            times=settings.times,
            shared_log=self.logs[name],
            transport=MemoryTransport(self.network),
            vote_file=VoteFile(self._folder / f"vote-{name}"),
            rng=random.Random(name),
        )
        member.on_change.append(lambda _: self.changed.set())
        self.members[name] = member
        return member

    async def start_member(self, name: str) -> ClusterMember:
        return await self._stack.enter_async_context(self.member(name))

    async def start_stream(
        self, name: str, handler: Handler | None = None, source: MemorySource | None = None
    ) -> SharedStream:
        async def note(event: Event, leadership: Leadership) -> None:
            self.handled.append((name, event, leadership.term))
            self.changed.set()

        stream = SharedStream(
            source or self.source,
            handler or note,
            member=self.member(name),
            settings=self.settings(name),
        )
        self.streams[name] = stream
        return await self._stack.enter_async_context(stream)

    async def until(self, reached: Callable[[], object]) -> None:
        """Waits until something holds; looks after every change, and now and then."""
        async with asyncio.timeout(DEADLINE_S):
            while not reached():
                self.changed.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self.changed.wait()
                except TimeoutError:
                    continue

    def leader(self) -> str | None:
        """The one that leads, if there is exactly one."""
        leading = [name for name, member in self.members.items() if member.leadership]
        return leading[0] if len(leading) == 1 else None

    async def wait_leader(self, *, other_than: str | None = None) -> str:
        """Waits for a leader."""
        await self.until(lambda: self.leader() not in (None, other_than))
        leader = self.leader()
        assert leader is not None
        return leader
