"""Random concurrent transactions on real servers, with relays that die at random points.

`OUTBOX_EXAMPLES` is the number of examples for each database (`make soak` takes more).
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool
from tests.outbox_kit import Killed, Record, a_worker, drain_all, new_topic, read_all

from dovetail.outbox.database import open_engine
from dovetail.outbox.producer import Producer
from dovetail.outbox.shards import set_shards
from dovetail.outbox.worker import RelayOptions

EXAMPLES = int(os.environ.get("OUTBOX_EXAMPLES", "3"))

#: Shorter than in production, so that the locks of the dead are soon free.
OPTIONS = RelayOptions(lock_ms=300, batch_messages_max=7, batch_bytes_max=2000)


@dataclass(frozen=True)
class Script:
    """One transaction: lists of keys to publish, pauses in between, and how it ends."""

    lists: list[list[str]]
    pauses_ms: list[int]
    commits: bool


@dataclass
class Done:
    """What became of a transaction; times are of the clock that all threads share."""

    ids: list[tuple[str, str]] = field(default_factory=list)
    commit_began: float = 0.0
    commit_ended: float = 0.0
    committed: bool = False


_KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
_SCRIPTS = st.builds(
    Script,
    lists=st.lists(st.lists(_KEYS, min_size=1, max_size=5), min_size=1, max_size=3),
    pauses_ms=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    commits=st.booleans() | st.just(True),
)


def _run(url: str, topic: str, script: Script, done: Done) -> None:
    """Runs a transaction; one that the database ends (a deadlock) has rolled back."""
    engine = create_engine(url, poolclass=NullPool, **_arguments(url))
    producer = Producer(topic)
    try:
        with engine.connect() as connection:
            transaction = connection.begin()
            for keys, pause_ms in zip(script.lists, script.pauses_ms, strict=False):
                messages = [producer.message(b"x", key=key) for key in keys]
                producer.publish_list(messages, on=connection, backend="db")
                done.ids += [(message.id, key) for message, key in zip(messages, keys, strict=True)]
                time.sleep(pause_ms / 1000)
            done.commit_began = time.monotonic()
            if script.commits:
                transaction.commit()
            else:
                transaction.rollback()
            done.commit_ended = time.monotonic()
            done.committed = script.commits
    except OperationalError:
        done.committed = False


def _arguments(url: str) -> dict[str, object]:
    return {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}


def _relay_until(
    url: str, bootstrap: str, seed: int, over: threading.Event, failures: list[BaseException]
) -> None:
    """Relays one after the other, each dying at a random step, until `over` is set."""
    chance = random.Random(seed)
    try:
        while not over.is_set():
            steps_left = chance.randint(1, 25)

            def on_step(_: str) -> None:
                nonlocal steps_left
                steps_left -= 1
                if steps_left == 0:
                    raise Killed

            try:
                with a_worker(url, bootstrap, OPTIONS, on_step=on_step) as worker:
                    while not over.is_set():
                        if not worker.work_once():
                            over.wait(0.005)
            except Killed:
                continue
    except BaseException as error:  # The test's own thread raises it.
        failures.append(error)


def _check(all_done: list[Done], records: list[Record]) -> None:
    arrived = [record.message_id for record in records]
    assert len(arrived) == len(set(arrived)), "stored twice"
    committed = {message_id for done in all_done if done.committed for message_id, _ in done.ids}
    assert set(arrived) == committed
    place = {message_id: at for at, message_id in enumerate(arrived)}
    kept = [done for done in all_done if done.committed]
    for done in kept:
        by_key: dict[str, list[int]] = {}
        for message_id, key in done.ids:
            by_key.setdefault(key, []).append(place[message_id])
        assert all(places == sorted(places) for places in by_key.values()), "order in a list"
    for earlier in kept:
        for later in kept:
            if earlier.commit_ended >= later.commit_began:
                continue
            for earlier_id, key in earlier.ids:
                for later_id, other in later.ids:
                    if key == other:
                        assert place[earlier_id] < place[later_id], "not in the order of commits"


@pytest.mark.parametrize("kind", ["postgres", "maria", "sqlite"])
def test_committed_messages_arrive_once_in_the_order_of_commits(
    kind: str, kafka: str, new_database_of: Callable[[str], str]
) -> None:
    """O2, O5, O7, O8, O10: whatever transactions and relays do; none rolled back, none twice."""

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(
        scripts=st.lists(_SCRIPTS, min_size=6, max_size=14),
        seed=st.integers(0, 2**32),
        shards=st.sampled_from([1, 3]),
        backlog=st.booleans(),
    )
    def holds(scripts: list[Script], seed: int, shards: int, backlog: bool) -> None:
        url, topic = new_database_of(kind), new_topic(kafka)
        if kind != "sqlite":
            set_shards(open_engine(url), topic, shards)
        over = threading.Event()
        failures: list[BaseException] = []
        relays = [
            threading.Thread(target=_relay_until, args=(url, kafka, seed + n, over, failures))
            for n in range(2)
        ]
        all_done = [Done() for _ in scripts]
        publishers = [
            threading.Thread(target=_run, args=(url, topic, script, done))
            for script, done in zip(scripts, all_done, strict=True)
        ]
        # With a backlog the relays see the order only in the tables, not by watching it come.
        for thread in publishers if backlog else [*relays, *publishers]:
            thread.start()
        for thread in publishers:
            thread.join()
        if backlog:
            for thread in relays:
                thread.start()
            over.wait(0.2)
        over.set()
        for thread in relays:
            thread.join()
        assert not failures, failures
        drain_all(url, kafka, OPTIONS)
        _check(all_done, read_all(kafka, topic))

    holds()
