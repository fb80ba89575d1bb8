"""What the shared stream costs: the leader's filter for each event, and pings.

The filter is timed on a real leadership. Pings are counted on the real machine in virtual time, so
the figures are exact and the same on every machine.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.run import Run
from bench.table import Line
from dovetail import election
from dovetail.election.effects import Append, Effect, Send, Vote
from dovetail.election.election import Identity
from dovetail.election.fold import Claim, LogState, Moment, Register
from dovetail.election.identifiers import Incarnation
from dovetail.election.majority import MajorityElection
from dovetail.election.messages import Ping, PingAnswer, VoteAnswer, VoteRequest
from dovetail.stream import Event, OnlyLeader, StreamMetrics, StreamSettings
from dovetail.stream.handler import IsolatedHandler

FILTER_US_MAX = 5.0
SETTINGS = StreamSettings(coordination_stream_id="bench", timeout_ms=1_000)
SECONDS = 20
MEMBERS = (2, 3, 5, 9)
EVENTS_PER_SECOND = (0, 10, 1_000)


def measure_filter(run: Run) -> Sequence[Line]:
    count = run.sized(200_000, quick=20_000)
    filter_us, whole_us = asyncio.run(_time_filter(run, count))
    return [
        Line(
            "filter",
            "leader filter, for each event",
            filter_us,
            "µs",
            "limit",
            FILTER_US_MAX,
            ratio_max=1.0,
        ),
        Line(
            "filter",
            "filter, error isolation and a handler that does nothing, for each event",
            whole_us,
            "µs",
        ),
    ]


async def _time_filter(run: Run, count: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir=run.folder) as folder:
        member = election.ClusterMember(
            election.MemberName("bench"),
            algorithm=election.Algorithm.MAJORITY,
            times=SETTINGS.times,
            shared_log=election.MemorySharedLog(election.MemoryLog()),
            transport=election.MemoryTransport(election.MemoryNetwork()),
            vote_file=election.VoteFile(Path(folder) / "vote"),
        )
        async with member:
            leadership = await member.lead()
            events = [Event(0, number, b"x") for number in range(count)]
            filtered = min(_filter_us(events, leadership) for _ in range(run.rounds))
            # The loop stood still meanwhile; the member pings and counts again before it goes on.
            await asyncio.sleep(SETTINGS.times.heartbeat_ms / 1000)

            async def nothing(_: Event, __: election.Leadership) -> None:
                return

            handler = IsolatedHandler(nothing, OnlyLeader(), StreamMetrics(), stop_s=60.0)
            started = time.perf_counter()
            # In slices, so that the loop can ping in between as it does in real life.
            for first in range(0, count, 1_000):
                done = await handler.handle(events[first : first + 1_000], leadership)
                assert len(done) == min(1_000, count - first)
                await asyncio.sleep(0)
            whole = (time.perf_counter() - started) / count * 1e6
    return filtered, whole


def _filter_us(events: list[Event], leadership: election.Leadership) -> float:
    accepts = OnlyLeader().accepts
    started = time.perf_counter()
    for event in events:
        accepts(event, leadership)
    return (time.perf_counter() - started) / len(events) * 1e6


def measure_pings(_: Run) -> Sequence[Line]:
    heartbeat_s = SETTINGS.times.heartbeat_ms / 1000
    event_ping_s = SETTINGS.times.event_ping_ms / 1000
    lines = []
    for rate in EVENTS_PER_SECOND:
        for members in MEMBERS:
            sent = _pings(members, rate) / SECONDS
            most = min(max(rate, 1 / heartbeat_s), 1 / event_ping_s) * (members - 1)
            lines.append(
                Line(
                    "pings",
                    f"{members} members, {rate} events a second",
                    sent,
                    "pings/s",
                    "stated rate",
                    most,
                    ratio_max=1.05,
                    note="one to each other member at every heartbeat (250 ms here) and after an "
                    "event, but not more often than every quarter of a heartbeat",
                )
            )
    return lines


def _pings(members: int, events_per_second: int) -> int:
    """Pings of a leader in `SECONDS` of virtual time."""
    names = [election.MemberName(f"m{number}") for number in range(members)]
    state = LogState()
    for name in names:
        state.apply(Register(name, Incarnation(name)), Moment(0, 0.0))
    me = Identity(names[0], Incarnation(names[0]))
    leader = MajorityElection(me, SETTINGS.times, state, random.Random(1), now_ms=0.0, vote=Vote())
    begun_ms = 2.0 * SETTINGS.timeout_ms
    _elect(leader, state, begun_ms)
    sent = 0
    for step in range(SECONDS * 1_000):
        now_ms = begun_ms + step
        effects: list[Effect] = []
        if events_per_second and step % (1_000 // events_per_second) == 0:
            effects += leader.on_received({0: step}, busy=False, now_ms=now_ms)
        effects += leader.on_tick(now_ms=now_ms)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Ping):
                sent += 1
                answer = PingAnswer(
                    sender=effect.to,
                    incarnation=Incarnation(effect.to),
                    term=election.Term(1),
                    sent_ms=now_ms,
                )
                leader.on_message(answer, now_ms=now_ms)
    return sent


def _elect(leader: MajorityElection, state: LogState, now_ms: float) -> None:
    """Everybody votes for it, until the log has its claim."""
    effects = leader.on_tick(now_ms=now_ms)
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, Send) and isinstance(effect.message, VoteRequest):
            request = effect.message
            effects += leader.on_message(
                VoteAnswer(
                    sender=effect.to,
                    incarnation=Incarnation(effect.to),
                    term=request.term,
                    election=request.election,
                    trial=request.trial,
                    granted=True,
                    known_term=election.Term(0),
                ),
                now_ms=now_ms,
            )
        elif isinstance(effect, Append) and isinstance(effect.record, Claim):
            counts = state.apply(effect.record, Moment(0, now_ms))
            leader.on_record(effect.record, counts=counts, now_ms=now_ms)
            return
