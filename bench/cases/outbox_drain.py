"""Draining: one worker beside the source's algorithm and the database's own limit; four workers."""

import multiprocessing
import multiprocessing.process
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]
import psycopg
from tests.database_servers import Database, PostgresServer, running_postgres

from bench import client, outbox_tables
from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox.database import open_engine
from dovetail.outbox.relay import Relay
from dovetail.outbox.schema import create_tables
from dovetail.outbox.shards import set_shards
from dovetail.outbox.status import read_status
from dovetail.outbox.worker import RelayOptions

_CASE = "drain"
_WORKERS = 4
#: One partition for each key range; the hot topic of four workers has more.
_PARTITIONS = 4
#: How much faster four must be, where the machine has room for it.
_SCALE_MIN = 1.6
#: From this share of its processors on a machine has no room for more.
_BUSY = 0.95
#: The plain relay scans its whole table for every mark; this much of a run tells its rate.
_PLAIN_S = 20.0


def measure(run: Run) -> list[Line]:
    messages = run.sized(1_000_000, quick=50_000)
    with running_postgres(durable=True) as server, Node(run.folder / "drain") as node:
        database = server.create_database()
        create_tables(open_engine(database.url))
        outbox_tables.make_plain_tables(database.dsn)
        measured = _Drains(run, server, database, node)
        best: dict[str, float] = {}
        drains: dict[str, Callable[[], float]] = {
            "plain": lambda: measured.plain(messages),
            "limit": lambda: measured.limit(messages),
            "one": lambda: measured.ours(messages, workers=1),
            "open": lambda: measured.ours(messages, workers=1, open_transaction=True),
            "four": lambda: measured.ours(messages, workers=_WORKERS),
        }
        for at in range(run.rounds):
            for name, drained in drains.items():
                rate = drained()
                run.note(f"  round {at + 1}: {name} {rate:,.0f} messages/s")
                best[name] = max(best.get(name, 0.0), rate)
    notes = [f"processor seconds with {n}: {used}" for n, used in measured.used.items()]
    busy = measured.used[_WORKERS].busy
    room = busy < _BUSY
    if not room:
        notes.append(
            f"no rule: {_WORKERS} workers keep {busy:.0%} of the processors busy: the limit"
        )
    rate = "messages/s"
    one = best["one"]
    return [
        Line(_CASE, "one worker", one, rate, "the source's algorithm", best["plain"], 5.0),
        Line(_CASE, "one worker", one, rate, "delete returning alone", best["limit"], 0.6),
        Line(_CASE, "a transaction open", best["open"], rate, "one worker", one, 0.85),
        Line(
            _CASE,
            "four workers, one topic",
            best["four"],
            rate,
            "one worker",
            one,
            _SCALE_MIN if room else None,
            note="; ".join(notes),
        ),
        Line(_CASE, "four workers", best["four"], rate, "delete returning alone", best["limit"]),
    ]


@dataclass(frozen=True, slots=True)
class _Used:
    """Processor seconds of a run, by who used them, and those that the machine had."""

    by_name: dict[str, float]
    available: float

    @property
    def busy(self) -> float:
        return sum(self.by_name.values()) / self.available

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {value:.1f}" for name, value in self.by_name.items())
        return f"{shares}, of {self.available:.1f}"


class _Drains:
    def __init__(self, run: Run, server: PostgresServer, database: Database, node: Node) -> None:
        self._run = run
        self._server = server
        self._database = database
        self._node = node
        #: By the number of workers, in the last round.
        self.used: dict[int, _Used] = {}

    def plain(self, messages: int) -> float:
        topic = client.create_topic(self._node.bootstrap, "plain", partitions=_PARTITIONS)
        self._run.step("filling the plain table")
        outbox_tables.fill_plain(self._database.dsn, topic, messages)
        self._run.step("draining it by the source's algorithm")
        bootstrap = self._node.bootstrap
        rate = outbox_tables.drain_plainly(self._database.dsn, bootstrap, topic, _PLAIN_S)
        outbox_tables.empty_plain(self._database.dsn)
        return rate

    def limit(self, messages: int) -> float:
        self._run.step("filling")
        outbox_tables.fill(self._database.dsn, "limit", messages)
        self._run.step("delete returning")
        return outbox_tables.delete_returning(self._database.dsn, "limit")

    def ours(self, messages: int, *, workers: int, open_transaction: bool = False) -> float:
        topic = client.create_topic(self._node.bootstrap, "drain", partitions=_PARTITIONS)
        self._run.step("filling")
        outbox_tables.fill(self._database.dsn, topic, messages)
        set_shards(open_engine(self._database.url), topic, workers)
        self._run.step(f"draining with {workers} workers")
        with _maybe_open(self._database.dsn, open_transaction):
            before = self._cpu()
            seconds = _drained_in(self._database.url, self._node.bootstrap, workers)
            left = sum(t.pending for t in read_status(open_engine(self._database.url)).topics)
            if left:
                raise RuntimeError(f"{left} messages were not sent")
            if not open_transaction:
                after = self._cpu()
                by_name = {name: after[name] - before[name] for name in before}
                by_name["relays"] = _RELAY_CPU[-1]
                self.used[workers] = _Used(by_name, seconds * (os.cpu_count() or 1))
        return messages / seconds

    def _cpu(self) -> dict[str, float]:
        return {"PostgreSQL": _tree_cpu_s(self._server), "node": self._node.cpu_s()}


_RELAY_CPU: list[float] = []


@contextmanager
def _maybe_open(dsn: str, wanted: bool) -> Iterator[None]:
    """A transaction that has written and has a snapshot, as a long job would; or none."""
    if not wanted:
        yield
        return
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("CREATE TABLE held_open (id int)")
        yield
        connection.rollback()


def _drained_in(url: str, bootstrap: str, workers: int) -> float:
    """Seconds until nothing waits. Each worker is a process: Python's lock is not measured."""
    context = multiprocessing.get_context("spawn")
    go, ready, done = context.Event(), context.Semaphore(0), context.Queue()
    processes = [
        context.Process(target=_relay, args=(url, bootstrap, go, ready, done))
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    started = time.perf_counter()
    go.set()
    ends = [_end_of_one(processes, done) for _ in processes]
    for process in processes:
        process.join()
    _RELAY_CPU.append(sum(cpu_s for _, cpu_s in ends))
    return max(ended for ended, _ in ends) - started


def _end_of_one(
    processes: "Sequence[multiprocessing.process.BaseProcess]", done: object
) -> tuple[float, float]:
    """What the next relay says at its end. Raises if one died instead: it would say nothing."""
    while True:
        try:
            found: tuple[float, float] = done.get(timeout=1.0)  # type: ignore[attr-defined]
            return found
        except queue.Empty:
            failed = [process.exitcode for process in processes if process.exitcode]
            if failed:
                raise RuntimeError(f"a relay ended with exit code {failed[0]}") from None


def _relay(
    url: str, bootstrap: str, go: Callable[..., object], ready: object, done: object
) -> None:
    """One relay; tells when nothing is left that nobody works on, and what it used."""
    engine = open_engine(url)
    options = RelayOptions(workers=1, pass_ms_max=300_000)
    relay = Relay(engine, Brokers(bootstrap), options)
    worker = relay.workers[0]
    # One round before the clock runs opens the connections and asks for the partitions.
    ready.release()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    before = time.process_time()
    while worker.work_once():
        pass
    ended = time.perf_counter()
    done.put((ended, time.process_time() - before))  # type: ignore[attr-defined]
    worker.close()


def _tree_cpu_s(server: PostgresServer) -> float:
    total = 0.0
    for pid in server.pids():
        # A session that ends meanwhile is in its parent's sum.
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
