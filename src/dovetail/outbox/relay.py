"""The relay: workers in threads, their wake-up, and a clean stop.

`start_relay(threads=n)` runs it inside an application; `dovetail relay` runs it as a process. Any
number of relays can run against one database: locks divide the topics among them.
"""

import os
import socket
import threading
import uuid
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from dovetail.background import keep_thread
from dovetail.errors import InvalidSetting, NotFound
from dovetail.exposition import BackgroundCollector
from dovetail.kafka.client.brokers import Brokers
from dovetail.logging import get_logger
from dovetail.outbox.backends import brokers_of, timelines_of
from dovetail.outbox.database import DatabaseDown, open_engine, reason_of
from dovetail.outbox.metrics import RelayMetrics
from dovetail.outbox.schema import CHANNEL, check_version
from dovetail.outbox.sender import KafkaSender
from dovetail.outbox.status import read_status
from dovetail.outbox.store import Store
from dovetail.outbox.timeline_sender import TimelineSender
from dovetail.outbox.worker import Memory, OnStep, RelayOptions, Worker
from dovetail.supervision import Supervisor

if TYPE_CHECKING:
    from dovetail.settings import Settings

_log = get_logger("outbox")

#: Between two looks at what waits, for the metrics, and at messages without a place.
HOUSEKEEPING_S = 15.0
ADOPT_EVERY = 4
#: How long one wait for notifications lasts; a stop is noticed in between.
LISTEN_S = 0.5


class Relay:
    """Sends what is in the outbox. Start it once; `stop` finishes the batches and unlocks."""

    def __init__(
        self,
        engine: Engine,
        brokers: Brokers,
        options: RelayOptions | None = None,
        *,
        registry: CollectorRegistry | None = None,
        on_step: OnStep | None = None,
        timelines: Brokers | None = None,
    ) -> None:
        """`timelines` is where the timelines are, if not at the `brokers`."""
        self.options = options or RelayOptions()
        self._engine = engine
        self._stopping = threading.Event()
        self._woken = [threading.Event() for _ in range(self.options.workers)]
        self.metrics = RelayMetrics(registry)
        self._sender = KafkaSender(
            brokers,
            delivery_ms=self.options.delivery_ms,
            compression=self.options.compression,
        )
        self._timelines = TimelineSender(timelines or brokers)

        memory = Memory()
        me = f"{socket.gethostname()[:20]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.workers = [
            Worker(
                f"{me}-{number}",
                Store(engine),
                self._sender,
                self.options,
                memory=memory,
                metrics=self.metrics,
                stopping=self._stopping,
                woken=woken,
                on_step=on_step,
                timelines=self._timelines,
            )
            for number, woken in enumerate(self._woken)
        ]

        self._threads: list[threading.Thread] = []
        self._supervisor = Supervisor()
        self.metrics.registry.register(BackgroundCollector(self._supervisor))

    def start(self) -> Self:
        """Starts the threads. Raises `NotFound` if the tables are not there, or `DatabaseDown`."""
        try:
            check_version(self._engine)
        except DBAPIError as error:
            self._sender.close()
            raise DatabaseDown(reason_of(error)) from error
        except NotFound:
            self._sender.close()
            raise

        stopped, dialect = self._stopping, self._engine.dialect
        with self._supervisor.supervising():
            for worker in self.workers:
                self._threads.append(
                    keep_thread(worker.run, name="outbox/worker", of=worker.name, stopped=stopped)
                )
            self._threads.append(
                keep_thread(self._keep_house, name="outbox/housekeeping", stopped=stopped)
            )
            if dialect.name == "postgresql" and dialect.driver == "psycopg":
                self._threads.append(
                    keep_thread(self._listen, name="outbox/listen", stopped=stopped)
                )
        return self

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the relay works, and what of it fails again and again."""
        problems = self._supervisor.problems()
        working = bool(self._threads) and all(thread.is_alive() for thread in self._threads)
        healthy = working and not problems
        return healthy, {"status": "ok" if healthy else "degraded", "problems": problems}

    def request_stop(self) -> None:
        """Asks for the end; returns at once."""
        self._stopping.set()
        for woken in self._woken:
            woken.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; whether it came in time."""
        for thread in self._threads:
            thread.join(timeout_s)
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended:
            self._sender.close()
            self._timelines.close()
            self._engine.dispose()
        return ended

    def stop(self) -> None:
        """Finishes the batches, unlocks, ends."""
        self.request_stop()
        self.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _keep_house(self) -> None:
        store = Store(self._engine)
        rounds = 0
        while not self._stopping.is_set():
            try:
                if rounds % ADOPT_EVERY == 0 and (adopted := store.adopt()):
                    _log.warning("adopted messages without a place in the order", lists=adopted)
                for topic in read_status(self._engine).topics:
                    self.metrics.waiting(
                        topic.topic, pending=topic.pending, oldest_ms=topic.oldest_ms
                    )
            except (DatabaseDown, DBAPIError) as error:
                _log.debug("cannot look at the outbox", reason=str(error))
            rounds += 1
            self._stopping.wait(HOUSEKEEPING_S)
        store.close()

    def _listen(self) -> None:
        """PostgreSQL: wakes the workers when a publisher says that it committed."""
        while not self._stopping.is_set():
            with suppress(DBAPIError, OSError), self._engine.connect() as connection:
                self._follow(connection.connection.driver_connection)
                # It listens: nobody else should get it.
                connection.invalidate()
            self._stopping.wait(self.options.retry_ms / 1000)

    def _follow(self, raw: object) -> None:
        import psycopg

        assert isinstance(raw, psycopg.Connection)
        try:
            raw.autocommit = True
            raw.execute(f"LISTEN {CHANNEL}")
            # Who notified while nobody listened was not heard.
            self._wake_all()
            while not self._stopping.is_set():
                for _ in raw.notifies(timeout=LISTEN_S):
                    self._wake_all()
        except psycopg.Error as error:
            _log.debug("stopped listening to the database", reason=str(error))

    def _wake_all(self) -> None:
        for woken in self._woken:
            woken.set()


def relay_of(
    settings: "Settings",
    *,
    threads: int | None = None,
    registry: CollectorRegistry | None = None,
    on_step: OnStep | None = None,
) -> Relay:
    """A relay by the settings of section `outbox`. Raises `InvalidSetting`."""
    outbox = settings.outbox
    if not outbox.database:
        raise InvalidSetting(
            "outbox.database is not set; give the address of the database, for example "
            "--database postgresql://user@host/name, or outbox.database in dovetail.toml"
        )

    options = RelayOptions(
        workers=threads or outbox.workers,
        batch_messages_max=outbox.batch_messages_max,
        batch_bytes_max=outbox.batch_bytes_max,
        lock_ms=outbox.lock_ms,
        idle_ms=outbox.idle_ms,
        retry_ms=outbox.retry_ms,
        retry_ms_max=outbox.retry_ms_max,
        delivery_ms=outbox.delivery_ms,
        shards=outbox.shards,
        partitioner=outbox.partitioner,
        compression=outbox.compression,
        compact_topics=frozenset(name for name in outbox.compact_topics.split(",") if name),
    )

    return Relay(
        open_engine(outbox.database),
        brokers_of(settings),
        options,
        registry=registry,
        on_step=on_step,
        timelines=timelines_of(settings),
    )


def start_relay(
    threads: int = 1,
    *,
    settings: "Settings | None" = None,
    database: str | None = None,
    bootstrap: str | None = None,
) -> Relay:
    """Starts a relay inside this process and returns it; `stop()` ends it.

    Without `settings` they come from `dovetail.toml` and the environment.
    """
    from dovetail.settings import Flag, load_settings

    if settings is None:
        given = {"outbox.database": database, "outbox.kafka": bootstrap}
        flags = [Flag(name, value, name) for name, value in given.items() if value is not None]
        settings = load_settings(flags=flags)
    return relay_of(settings, threads=threads).start()
