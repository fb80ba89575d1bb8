"""The operator's Kafka client: one connection to a cluster, questions, changes, and clear errors.

`Kafka` wraps librdkafka's admin client. Its calls block, so the console runs them on threads. Any
broker answers for the whole cluster, with the same checks and limits as for every other client.

librdkafka retries in silence until a timeout and then reports a transport failure. So `check`
first tries each bootstrap address with our own client, which fails at once with the reason: no
process listens, the login is wrong, the node wants TLS, or it is not Kafka at all. Every error code
becomes one of our own errors. A broker that does not answer within the time limit is `Unreachable`,
or `Uncertain` if something was to change.
"""

import difflib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from dovetail.addresses import Address, parse_addresses
from dovetail.errors import (
    DovetailError,
    InvalidInput,
    ProtocolViolation,
    TopicUnknown,
    Uncertain,
    Unreachable,
)
from dovetail.kafka.client.greeting import Greeter
from dovetail.kafka.client.librdkafka import SILENT, meaning_of

if TYPE_CHECKING:
    from dovetail.kafka.client.client import KafkaClient

PORT_DEFAULT = 9092
#: A broker that lives answers in milliseconds; nobody waits long for one that died just now.
ANSWER_S_MAX = 2.0
#: Time to try one address. A node on this machine or in this network answers within milliseconds.
CONNECT_S_MAX = 3.0
#: Consumers that read at once. Each has its threads and up to 16 MiB that it fetched ahead.
READS_MAX = 4

#: A partition of a topic, in the form that is easy to compare and to sort.
Partition = tuple[str, int]

#: What the names of topics begin with in which nodes keep their own state.
_INTERNAL_PREFIX = "__dovetail_"
_INTERNAL_OF_KAFKA = frozenset({"__consumer_offsets", "__transaction_state"})

_SILENCE_HINT = (
    "Is a partition without an owner? Can this machine reach the address that brokers give to "
    "clients (kafka.advertised_host)?"
)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Who leads a partition; None if nobody does."""

    number: int
    leader: int | None
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Brokers, topics and leaders, as one broker knows them."""

    brokers: Mapping[int, Address]
    topics: Mapping[str, tuple[PartitionMetadata, ...]]

    def partitions(self, *topics: str) -> list[Partition]:
        """The partitions of these topics, in order; a topic that is gone has none."""
        return [(name, one.number) for name in topics for one in self.topics.get(name, ())]

    def leaders(self) -> dict[Partition, int | None]:
        """The leader of every partition."""
        return {
            (name, one.number): one.leader for name, found in self.topics.items() for one in found
        }

    @property
    def without_leader(self) -> list[Partition]:
        """Partitions that nobody serves."""
        return sorted(place for place, leader in self.leaders().items() if leader is None)

    def topic(self, name: str) -> tuple[PartitionMetadata, ...]:
        """The partitions of one topic. Raises `TopicUnknown`, with the nearest name if any is."""
        found = self.topics.get(name)
        if found is None:
            near = difflib.get_close_matches(name, list(self.topics), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TopicUnknown(f"no topic {name!r}{hint}")
        return found


@dataclass(slots=True)
class Kafka:
    """A client of one cluster; nothing connects before the first call."""

    bootstrap: str
    timeout_s: float
    client_id: str
    #: TLS and login, as librdkafka takes them.
    security: Mapping[str, str] = field(default_factory=dict)
    #: What the user can do when no address answers.
    advice: str = ""
    reads: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(READS_MAX)
    )
    _admin: AdminClient | None = None
    _plain: "list[KafkaClient]" = field(default_factory=list)
    _making: threading.Lock = field(default_factory=threading.Lock)

    def config(self, **more: object) -> dict[str, Any]:
        """Configuration that all clients of this cluster share; names in `more` use `_` for `.`."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.client_id,
            # Errors reach us by results; librdkafka's own lines would only repeat them. There is no
            # error callback either: a Ctrl-C while one runs is lost, and the call ends in
            # SystemError.
            "log_level": 0,
            "log.connection.close": False,
            # Librdkafka takes 10 ms to 5 minutes.
            "socket.timeout.ms": min(300_000, max(1000, int(self.timeout_s * 1000))),
            "socket.nagle.disable": True,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 30_000,
            "allow.auto.create.topics": False,
            **self.security,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def check(self) -> None:
        """Raises unless a node answers at an address, or at least takes the connection.

        `Forbidden` if it refuses the login, else `Unreachable` with the reasons.
        """
        # Addresses by reason: brokers of one cluster refuse for the same one, which is said once.
        reasons: dict[str, list[str]] = {}
        busy = nobody = False
        greeter = Greeter(self.security, client_id=self.client_id)
        for address in parse_addresses(
            self.bootstrap, what="bootstrap address", port_default=PORT_DEFAULT
        ):
            try:
                line = socket.create_connection(address, min(self.timeout_s, CONNECT_S_MAX))
            except OSError as error:
                reason = f"{(error.strerror or str(error)).lower()}."
                reasons.setdefault(reason, []).append(str(address))
                nobody = True
                continue

            try:
                greeter.greet(line, address)
            except TimeoutError:
                busy = True
            except (OSError, ProtocolViolation) as error:
                reason = f"{error}. {greeter.hint(error)}".rstrip()
                reasons.setdefault(reason, []).append(str(address))
            else:
                return

        if not busy:
            advice = f"\n{self.advice}" if self.advice and nobody else ""
            words = " ".join(f"{', '.join(who)}: {reason}" for reason, who in reasons.items())
            raise Unreachable(f"cannot connect to {words}{advice}")

    @property
    def admin(self) -> AdminClient:
        """librdkafka's client, made when it is first needed."""
        with self._making:
            if self._admin is None:
                self._admin = AdminClient(self.config())
            return self._admin

    @contextmanager
    def plain(self) -> "Iterator[KafkaClient]":
        """A client of our own over plain sockets, for one thread at a time.

        For what is asked of many partitions at once: librdkafka's ListOffsets frees memory twice
        when several threads ask through one client, and takes the process with it.
        """
        from dovetail.kafka.client.brokers import Brokers
        from dovetail.kafka.client.client import KafkaClient

        with self._making:
            client = self._plain.pop() if self._plain else None
        if client is None:
            addresses = parse_addresses(
                self.bootstrap, what="bootstrap address", port_default=PORT_DEFAULT
            )
            brokers = Brokers.at(",".join(map(str, addresses)), self.security)
            client = KafkaClient(
                brokers, client_id=self.client_id, timeout_s=min(ANSWER_S_MAX, self.timeout_s)
            )
        try:
            yield client
        except BaseException:
            client.close()  # An answer may still come that nobody waits for.
            raise
        with self._making:
            self._plain.append(client)

    def close(self) -> None:
        """Ends the clients; the next call makes others."""
        with self._making:
            self._admin = None
            plain, self._plain = self._plain, []
        for client in plain:
            client.close()

    def __del__(self) -> None:
        self.close()  # Commands that end leave it to the end of their process.

    def metadata(self, *topics: str) -> Metadata:
        """Brokers, topics and leaders now: of all topics, or of those of these that exist.

        Never creates a topic. Raises `Unreachable`, `Unavailable`.
        """
        if topics:
            return self._metadata_of(topics)
        found = self.call("listing topics", lambda: self.admin.list_topics(timeout=self.timeout_s))
        brokers = {number: Address(one.host, one.port) for number, one in found.brokers.items()}
        known = {}
        for name in sorted(found.topics):
            known[name] = tuple(
                PartitionMetadata(
                    number, one.leader if one.leader in brokers else None, tuple(one.replicas)
                )
                for number, one in sorted(found.topics[name].partitions.items())
            )
        return Metadata(brokers, known)

    def _metadata_of(self, topics: Iterable[str]) -> Metadata:
        """Of a few topics, where all would be thousands."""
        with self.plain() as client:
            found = client.metadata(topics)
        brokers = {one.node_id: Address(one.host, one.port) for one in found.brokers}
        return Metadata(
            brokers,
            {
                str(topic.name): tuple(
                    PartitionMetadata(
                        one.partition_index,
                        one.leader_id if one.leader_id in brokers else None,
                        tuple(one.replica_nodes),
                    )
                    for one in sorted(topic.partitions, key=lambda one: one.partition_index)
                )
                for topic in found.topics
                if not topic.error_code
            },
        )

    def ask(
        self,
        doing: str,
        action: "Callable[[AdminClient], Mapping[Any, Future[Any]]]",
        *,
        changes: bool = False,
    ) -> dict[Any, Any]:
        """The results of an admin call by its keys. Raises for the first that failed."""
        results = self.try_each(doing, action, changes=changes)
        for result in results.values():
            if isinstance(result, DovetailError):
                raise result
        return results

    def try_each(
        self,
        doing: str,
        action: "Callable[[AdminClient], Mapping[Any, Future[Any]]]",
        *,
        changes: bool = False,
    ) -> dict[Any, Any]:
        """For each key of an admin call its result, or the error that it ended in."""
        futures: Mapping[Any, Future[Any]] = self.call(
            doing, lambda: action(self.admin), changes=changes
        )
        limit_s = self.timeout_s + 1.0
        results: dict[Any, Any] = {}
        for key, future in futures.items():
            try:
                results[key] = self.call(doing, partial(future.result, limit_s), changes=changes)
            except DovetailError as error:
                results[key] = error
        return results

    def call(self, doing: str, action: Callable[[], Any], *, changes: bool = False) -> Any:
        """The result of `action`, with its Kafka error as one of ours; `doing` says what was tried.

        Raises `DovetailError`.
        """
        try:
            return action()
        except KafkaException as error:
            raise self.error_of(doing, error, changes=changes) from error
        except (TimeoutError, FutureTimeout) as error:
            raise self._silent(doing, "no answer at all", changes=changes) from error
        except (ValueError, TypeError, OverflowError, BufferError) as error:
            raise InvalidInput(f"{doing}: {error}") from error

    def error_of(
        self, doing: str, given: KafkaError | KafkaException, *, changes: bool = False
    ) -> DovetailError:
        """The error of ours that says what `given` means."""
        error: KafkaError = given.args[0] if isinstance(given, KafkaException) else given
        meaning = meaning_of(doing, error)
        if error.code() in SILENT or isinstance(meaning, Uncertain):
            return self._silent(doing, error.str(), changes=changes)
        return meaning

    def _silent(self, doing: str, reason: str, *, changes: bool) -> DovetailError:
        text = f"{doing}: no answer from {self.bootstrap} within {self.timeout_s:g} s ({reason})"
        if changes:
            return Uncertain(f"{text}; the change may or may not have happened. {_SILENCE_HINT}")
        return Unreachable(f"{text}. {_SILENCE_HINT}")


def is_internal(topic: str) -> bool:
    """Whether nodes keep their own state in this topic, by its name."""
    return topic.startswith(_INTERNAL_PREFIX) or topic in _INTERNAL_OF_KAFKA


def check_not_internal(topics: Iterable[str]) -> None:
    """Raises `InvalidInput` if nodes keep their own state in one of these topics."""
    for name in topics:
        if is_internal(name):
            raise InvalidInput(
                f"topic {name!r} is internal: nodes keep their own state in it, such as the "
                "positions of groups, and only they change it"
            )
