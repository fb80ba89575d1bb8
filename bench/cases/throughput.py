"""Produce and consume 100-byte messages, against peers that sync before they acknowledge.

One producer process, then one consumer process, one partition. Every round measures everybody
anew, side by side in time; of each figure the best round counts, for the peers as for us.
"""

from bench import client
from bench.node import Node
from bench.peers import nats, redis
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line

_BYTES = 100
_CASE = "a messages"
_UNIT = "messages/s"
#: What is required.
_TIMES_PEER = 3.0
_CPU_S_PER_MILLION = 0.26

_NATS_NOTE = (
    "nats-server before 2.10, so Debian's 2.9, cannot sync before it acknowledges (sync_interval: "
    "always). 'chattr +S': the file system makes every write of its folder synchronous, which is "
    "equal durability. 'WEAKER: unsynced': its default; a power cut loses what was acknowledged in "
    "the last minute or two, so this is not equal durability, and is shown because we must be "
    "faster than that too."
)
_CPU_NOTE = "user and system time of the node's process, all threads; limit 0.26 s."


class _Best:
    """The best of each figure over the rounds; higher is better."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.missing: dict[str, str] = {}

    def note(self, name: str, messages: int, span: client.Span) -> None:
        self.rates[name] = max(self.rates.get(name, 0.0), messages / span.seconds)


def measure(run: Run) -> list[Line]:
    best, cpu = _Best(), _Cpu()
    for at in range(run.rounds):
        _measure_nats(run, best, at)
        _measure_redis(run, best, at)
        _measure_node(run, best, cpu, at)
    for name, rate in best.rates.items():
        run.note(f"  {name}: {rate:,.0f} {_UNIT}")
    return [*_rate_lines(best), *cpu.lines()]


def _measure_nats(run: Run, best: _Best, at: int) -> None:
    try:
        modes = [nats.strongest(), nats.Sync.INTERVAL]
    except PeerMissing as error:
        best.missing["NATS"] = str(error)
        return
    for sync in modes:
        messages = run.sized(20_000 if sync is nats.Sync.INTERVAL else 5_000, quick=2_000)
        run.step(f"NATS JetStream, {sync.value}")
        name = f"NATS JetStream, {sync.value}"
        folder = run.folder / f"nats-{sync.name}-{at}"
        try:
            with nats.server(folder, sync) as address:
                for in_flight in (1, nats.IN_FLIGHT):
                    span = nats.produce(
                        address, messages=messages, message_bytes=_BYTES, in_flight=in_flight
                    )
                    how = "one by one" if in_flight == 1 else f"{in_flight} in flight"
                    best.note(f"{name}, produce {how}", messages, span)
                span = nats.consume(address, messages=2 * messages)
                best.note(f"{name}, consume", 2 * messages, span)
        except (PeerMissing, OSError) as error:
            best.missing[name] = str(error)


def _measure_redis(run: Run, best: _Best, at: int) -> None:
    messages = run.sized(200_000, quick=20_000)
    name = "Redis Streams, appendfsync always"
    run.step(name)
    try:
        with redis.server(run.folder / f"redis-{at}") as peer:
            span = redis.produce(peer, messages=messages, message_bytes=_BYTES)
            best.note(f"{name}, produce by {redis.BATCH}", messages, span)
            best.note(f"{name}, consume", messages, redis.consume(peer, messages=messages))
    except PeerMissing as error:
        best.missing[name] = str(error)


def _measure_node(run: Run, best: _Best, cpu: "_Cpu", at: int) -> None:
    messages = run.sized(2_000_000, quick=200_000)
    with Node(run.folder / f"throughput-{at}") as node:
        for idempotent in (False, True):
            how = "acks=all, idempotent" if idempotent else "acks=all"
            run.step(f"Dovetail, {how}")
            topic = client.create_topic(node.bootstrap, "bench")
            before = node.cpu_s()
            span = client.produce(
                node.bootstrap,
                topic,
                messages=messages,
                message_bytes=_BYTES,
                idempotent=idempotent,
            )
            produced = node.cpu_s()
            best.note(f"produce, {how}", messages, span)
            cpu.note(f"produce, {how}", produced - before, messages)
            best.note("consume", messages, client.consume(node.bootstrap, topic, messages=messages))
            cpu.note("consume", node.cpu_s() - produced, messages)


class _Cpu:
    """Processor seconds of the broker per million messages; lower is better."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, name: str, seconds: float, messages: int) -> None:
        per_million = seconds / messages * 1e6
        self._seconds[name] = min(self._seconds.get(name, per_million), per_million)

    def lines(self) -> list[Line]:
        return [
            Line(
                "b processor",
                f"broker, {name}",
                seconds,
                "s/million",
                "limit",
                _CPU_S_PER_MILLION,
                ratio_max=1.0,
                note=_CPU_NOTE,
            )
            for name, seconds in self._seconds.items()
        ]


def _rate_lines(best: _Best) -> list[Line]:
    lines = []
    for own, rate in best.rates.items():
        direction = own.partition(",")[0]
        peers = {name: r for name, r in best.rates.items() if f", {direction}" in name}
        if "idempotent" in own:  # One line tells enough: against the fastest.
            peers = dict(sorted(peers.items(), key=lambda item: item[1])[-1:])
        for peer, peer_rate in peers.items():
            note = _NATS_NOTE if peer.startswith("NATS") else ""
            lines.append(
                Line(_CASE, own, rate, _UNIT, peer, peer_rate, ratio_min=_TIMES_PEER, note=note)
            )
    for name, why in best.missing.items():
        lines.append(
            Line(
                _CASE, "all", None, _UNIT, name, None, ratio_min=_TIMES_PEER, note=f"{name}: {why}"
            )
        )
    return lines
