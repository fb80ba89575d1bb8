"""What every foreign client must be able to do, in the words of the scenarios.

A scenario is written once against `Driver`; a driver translates it into the calls of one client
and hides nothing of what that client sends: no driver falls back on another client. What a client
cannot do at all is left out of its features (see `registry`), and the scenario is not run for it.

A `Member` is one live consumer of a group. It polls in the background as an application would,
so that a rebalance among several members of one test makes progress by itself.
"""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

#: How long one call of a client may take before the test fails; a busy machine needs seconds.
CALL_SECONDS_MAX = 60.0
#: The largest request that a driver lets its client send; above the 1 MiB that brokers accept.
REQUEST_BYTES_MAX = 8 * 1024 * 1024
#: Kafka refuses a session timeout below this, unless told otherwise.
SESSION_TIMEOUT_MS = 6_000
#: Short, so that a member hears of a rebalance at once.
HEARTBEAT_INTERVAL_MS = 300
#: Short, so that closing and seeking never wait for an idle fetch.
FETCH_WAIT_MS_MAX = 100

Result = TypeVar("Result")
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What a client is asked to send."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0

    def as_arguments(self) -> dict[str, Any]:
        """As kafka-python and aiokafka take it."""
        return {
            "value": self.value,
            "key": self.key,
            "headers": list(self.headers),
            "partition": self.partition,
            "timestamp_ms": self.timestamp_ms,
        }


@dataclass(frozen=True, slots=True)
class Sending:
    """Messages that are sent with acks=all, in this order."""

    topic: str
    messages: Sequence[Message]
    codec: str
    idempotent: bool
    timeout_s: float

    @property
    def timeout_ms(self) -> int:
        return int(self.timeout_s * 1000)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read by assignment; from the beginning when `start` is None."""

    topic: str
    count: int
    partition: int
    start: int | None
    reset: str


@dataclass(frozen=True, slots=True)
class Record:
    """What a client has read."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.key, self.value, self.headers


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The brokers as the client sees them."""

    addresses: frozenset[str]
    controller_known: bool


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as the client describes it; `state` without spaces and in lower case."""

    state: str
    members: int


class ClientError(Exception):
    """A client reported an error; `name` is the protocol's name for it, else the client's own."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


def wait_for(what: str, probe: Callable[[], Result], seconds: float = CALL_SECONDS_MAX) -> Result:
    """Return the first truthy answer of `probe`.

    Raises:
        TimeoutError: when the answer stayed falsy until the deadline.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s, last answer {answer!r}")
        pause.wait(0.02)


class Member(ABC):
    """One live consumer of a group."""

    @abstractmethod
    def partitions(self) -> frozenset[int]:
        """The partitions that this member owns now."""

    @abstractmethod
    def take(self) -> list[Record]:
        """What was read since the last call."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""


class CommittingMember(Member):
    """A member whose positions the application commits."""

    @abstractmethod
    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit, per partition, the offset of the next record to read."""


class PollingMember(CommittingMember):
    """A member of a client that works only while it is polled: a thread does so.

    All calls into the client happen on that thread, because such clients are not thread-safe.
    """

    def __init__(self) -> None:
        self._records: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._owned: frozenset[int] = frozenset()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(owns {sorted(self._owned)}, failure {self._failure!r})"

    def start(self) -> None:
        self._thread.start()

    @abstractmethod
    def _poll(self) -> Sequence[Record]:
        """One short poll."""

    @abstractmethod
    def _assigned(self) -> frozenset[int]:
        """What the client says it owns."""

    @abstractmethod
    def _commit(self, positions: Mapping[int, int]) -> None:
        """Commit and wait for the answer."""

    @abstractmethod
    def _close(self) -> None:
        """Close the client."""

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                for record in self._poll():
                    self._records.put(record)
                self._owned = self._assigned()
                while not self._calls.empty():
                    call, future = self._calls.get()
                    try:
                        future.set_result(call())
                    except BaseException as error:
                        future.set_exception(error)
        except BaseException as error:
            self._failure = error
        finally:
            self._close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def partitions(self) -> frozenset[int]:
        self._check()
        return self._owned

    def take(self) -> list[Record]:
        self._check()
        taken = []
        while not self._records.empty():
            taken.append(self._records.get())
        return taken

    def commit(self, positions: Mapping[int, int]) -> None:
        future: Future[Any] = Future()
        self._calls.put((lambda: self._commit(positions), future))
        future.result(CALL_SECONDS_MAX)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(CALL_SECONDS_MAX)
        assert not self._thread.is_alive(), "the member did not close"
        self._check()


def python_consumer_settings(bootstrap: str, reset: str) -> dict[str, Any]:
    """Settings of a consumer, as kafka-python and aiokafka take them."""
    return {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": reset,
        "enable_auto_commit": False,
        "fetch_max_wait_ms": FETCH_WAIT_MS_MAX,
    }


def python_member_settings(bootstrap: str, group: str, instance: str | None) -> dict[str, Any]:
    """Settings of a member of a group, as kafka-python and aiokafka take them."""
    return python_consumer_settings(bootstrap, "earliest") | {
        "group_id": group,
        "group_instance_id": instance,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
    }


class Driver(ABC):
    """One client library or tool, connected to one server."""

    #: What this client can write and read, the codecs that all installations have first.
    codecs: ClassVar[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def close(self) -> None:  # noqa: B027  (most clients hold nothing between calls)
        """Release what is held between calls."""

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        timeout_s: float = CALL_SECONDS_MAX,
    ) -> None:
        """Send with acks=all, in this order, and return when all are acknowledged."""
        self.send(Sending(topic, messages, codec, idempotent, timeout_s))

    @abstractmethod
    def send(self, sending: Sending) -> None:
        """What `produce` does, by this client."""

    def read(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: int | None = None,
        reset: str = "earliest",
    ) -> list[Record]:
        """Read `count` records by assignment; from the beginning when `start` is None."""
        return self.fetch(Reading(topic, count, partition, start, reset))

    @abstractmethod
    def fetch(self, reading: Reading) -> list[Record]:
        """What `read` does, by this client."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not lower; None when there is none."""

    @abstractmethod
    def member(self, group: str, topic: str, *, instance: str | None = None) -> Member:
        """Join a group; a group without positions starts at the beginning."""

    def consume_group(self, group: str, topic: str, count: int) -> list[Record]:
        """Join, read exactly `count` records, commit behind them, leave."""
        member = self.member(group, topic)
        assert isinstance(member, CommittingMember)
        records: list[Record] = []

        def enough() -> bool:
            records.extend(member.take())
            return len(records) >= count

        try:
            wait_for(f"{count} records for {group}", enough)
            del records[count:]
            member.commit({r.partition: r.offset + 1 for r in records})
        finally:
            member.close()
        return records

    def topics(self) -> Mapping[str, int]:
        """All topics, with their number of partitions."""
        raise NotImplementedError

    def cluster(self) -> ClusterView:
        raise NotImplementedError

    def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def add_partitions(self, topic: str, total: int) -> None:
        raise NotImplementedError

    def config(self, topic: str) -> Mapping[str, str | None]:
        raise NotImplementedError

    def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        raise NotImplementedError

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        raise NotImplementedError

    def groups(self) -> frozenset[str]:
        raise NotImplementedError

    def group(self, group: str) -> GroupView:
        raise NotImplementedError

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        """Committed offsets of those partitions that have one."""
        raise NotImplementedError

    def set_committed(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        raise NotImplementedError
