"""What the librdkafka clients here share: their configuration, and one thread that polls.

librdkafka's defaults suit a service that can wait a minute. Here a connection that has gone silent
must be noticed within about a timeout, and a broker that is back must be found as fast.
"""

import threading
from collections.abc import Callable, Mapping

from dovetail.background import keep_thread
from dovetail.logging import get_logger

#: librdkafka takes no socket timeout below this; also room for a long poll.
SOCKET_TIMEOUT_MS_MIN = 1_000
#: A fetch waits so long at the end of a partition.
FETCH_WAIT_MS = 250
#: Longest pause between two attempts to connect.
RECONNECT_MS_MAX = 500

_log = get_logger("election")

Value = str | int | float | bool
ClientConfig = Mapping[str, Value]


def base_config(bootstrap: str, timeout_ms: int, extra: ClientConfig) -> dict[str, Value]:
    """Settings of every client here; `extra` (login, certificates) goes over them."""
    return {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": max(SOCKET_TIMEOUT_MS_MIN, timeout_ms),
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "topic.metadata.refresh.interval.ms": 10_000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "log_level": 0,
        **extra,
    }


def consumer_config(
    bootstrap: str, timeout_ms: int, extra: ClientConfig, *, group: str
) -> dict[str, Value]:
    """A consumer that is assigned its partitions and commits nothing."""
    return {
        **base_config(bootstrap, timeout_ms, extra),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.error.backoff.ms": 50,
        "allow.auto.create.topics": False,
    }


class Poller:
    """A thread that repeats one blocking call until it is stopped.

    A call that raises is a defect: `on_defect` gets it, and the thread begins again unless that
    stops it.
    """

    def __init__(
        self, name: str, poll: Callable[[], object], on_defect: Callable[[BaseException], None]
    ) -> None:
        self._name = name
        self._poll = poll
        self._on_defect = on_defect
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins."""
        self._thread = keep_thread(
            self._run, name="election/poll", of=self._name, stopped=self._stop
        )

    @property
    def stopping(self) -> bool:
        """Whether the thread should come to its end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Asks the thread to end; `join` waits for it."""
        self._stop.set()

    def join(self) -> None:
        """Waits for the thread. Not from the event loop: the call may take its time."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._poll()
            except BaseException as error:
                self._on_defect(error)
                raise
