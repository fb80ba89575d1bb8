"""Transactions that publish or are rolled back, and relays that die, hang and wake."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool
from tests.database_servers import DatabaseServer
from tests.outbox_kit import Record, new_topic, pending, read_all
from tests.soak.part import Heal
from tests.stopping import pause_process

from dovetail.outbox.database import open_engine
from dovetail.outbox.dead import list_dead
from dovetail.outbox.producer import Producer
from dovetail.outbox.schema import create_tables

KEYS = 5
BATCH = 5
PAUSE_S = 0.5
#: One message in so many is larger than its topic takes.
LARGE_EVERY = 100
LARGE_BYTES, TOPIC_BYTES = 30_000, 20_000
DRAIN_S_MAX = 300.0


class OutboxPart:
    """One database with an outbox, a writer, and a relay."""

    def __init__(
        self,
        name: str,
        url: str,
        server: DatabaseServer | None,
        bootstrap: str,
        folder: Path,
        rng: random.Random,
    ) -> None:
        self.name = name
        self._server = server
        self._url, self._bootstrap, self._rng = url, bootstrap, rng
        self._log_path = folder / f"{name}.log"
        create_tables(open_engine(url))
        self._topic = new_topic(bootstrap, **{"max.message.bytes": str(TOPIC_BYTES)})
        self._committed: list[str] = []
        self._rolled_back: set[str] = set()
        #: Commits that were never answered: there or not, and wholly so.
        self._unknown: list[set[str]] = []
        self._large: set[str] = set()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._relay = self._started()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def faults(self) -> Sequence[Callable[[], Heal]]:
        faults = [self.kill_the_relay, self.pause_the_relay, self.stop_the_relay]
        return faults if self._server is None else [*faults, self.kill_the_database]

    def kill_the_database(self) -> Heal:
        assert self._server is not None
        self._server.kill()
        return self._server.start

    def kill_the_relay(self) -> Heal:
        self._relay.kill()
        self._relay.wait()
        return self._start

    def stop_the_relay(self) -> Heal:
        self._wait_started()
        self._relay.send_signal(signal.SIGTERM)
        code = self._relay.wait(60)
        assert code == 0, f"{self.name}: the relay ended with {code}"
        return self._start

    def pause_the_relay(self) -> Heal:
        """Another one takes its place, and the first wakes behind it."""
        self._wait_started()
        first = self._relay
        pause_process(first.pid)
        self._start()

        def wake() -> None:
            first.send_signal(signal.SIGCONT)
            first.send_signal(signal.SIGTERM)
            first.wait(60)

        return wake

    def _start(self) -> None:
        self._relay = self._started()

    def _wait_started(self) -> None:
        """Starts it again, as a supervisor does, if it found no database at its start."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while "relay started" not in self._log_path.read_text()[self._log_start :]:
            assert time.monotonic() < deadline, f"{self.name}: the relay does not start"
            if self._relay.poll() is not None:
                self._start()
            time.sleep(0.1)

    def _started(self) -> "subprocess.Popen[bytes]":
        words = ["relay", "--database", self._url, "--bootstrap", self._bootstrap]
        with self._log_path.open("a") as log:
            self._log_start = log.tell()
            return subprocess.Popen(
                [sys.executable, "-m", "dovetail", *words],
                env={k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")},
                stdout=log,
                stderr=log,
            )

    def done(self) -> int:
        if self._error is not None:
            raise self._error
        return len(self._committed)

    def pids(self) -> Mapping[str, int]:
        return {f"relay of {self.name}": self._relay.pid}

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._wait_started()
        assert not self._thread.is_alive(), f"{self.name}: the writer hangs"
        deadline = time.monotonic() + DRAIN_S_MAX
        while left := pending(open_engine(self._url)):
            assert time.monotonic() < deadline, f"{self.name}: {left} wait still"
            time.sleep(0.5)

    def judge(self) -> str:
        records = read_all(self._bootstrap, self._topic)
        found = [record.message_id for record in records]
        assert len(found) == len(set(found)), f"{self.name}: something is there twice"
        there = set(found) | {letter.message_id for letter in list_dead(open_engine(self._url))}
        assert set(self._committed) <= there, f"{self.name}: lost"
        assert not self._rolled_back & there, f"{self.name}: rolled back, and sent"
        for unknown in self._unknown:
            assert unknown <= there or not unknown & there, f"{self.name}: half a transaction"
        assert not self._large & set(found)
        _check_order(records, self.name)
        text = self._log_path.read_text()
        assert "Traceback" not in text, text[-3000:]
        return f"{len(found)} sent once and in order, {len(there) - len(found)} dead letters"

    def end(self) -> None:
        self._stop.set()
        self._relay.kill()
        self._relay.wait()

    def _run(self) -> None:
        try:
            producer = Producer(self._topic, backend="db")
            engine = create_engine(self._url, poolclass=NullPool)
            number = 0
            while not self._stop.wait(PAUSE_S):
                messages = []
                for _ in range(BATCH):
                    number += 1
                    large = number % LARGE_EVERY == 0
                    payload = b"x" * LARGE_BYTES if large else str(number).encode()
                    messages.append(producer.message(payload, key=f"k{number % KEYS}"))
                    if large:
                        self._large.add(messages[-1].id)
                ids = {message.id for message in messages}
                back = self._rng.random() < 0.1
                try:
                    with engine.connect() as connection:
                        producer.publish_list(messages, on=connection)
                        connection.rollback() if back else connection.commit()
                except SQLAlchemyError:
                    # The database died somewhere on the way.
                    self._unknown.append(ids)
                    continue
                if back:
                    self._rolled_back |= ids
                else:
                    self._committed += sorted(ids)
        except BaseException as error:
            self._error = error


def _check_order(records: list[Record], name: str) -> None:
    by_key: dict[bytes | None, list[int]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{name}: key {key!r} is out of order"
