"""A small Kafka client over plain sockets: for Spark's workers, the outbox's relay and `admin`.

They read and write what was planned elsewhere: ranges of offsets, batches under stored sequence
numbers. They need no group, no thread and no queue: requests go out, answers come in order, one
connection to each broker. Record batches stay bytes.

Promise: a call returns what the broker answered, or raises. A transient failure (a leader that
moved, a broken connection, a broker that is starting) is retried until `timeout_s` is over; the
error then has the last reason. This module never repeats a write: see `producer`.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dovetail.addresses import Address
from dovetail.errors import DovetailError, TopicUnknown, Unavailable, Uncertain
from dovetail.foreign import KAFKA_TEXT_BYTES_MAX, encoded
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.connection import CONNECT_S_MAX, Connection
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode, error_of

Answer = TypeVar("Answer")
#: A topic and the number of one of its partitions.
Partition = tuple[str, int]

EARLIEST, LATEST = -2, -1

#: A topic, among what has settings.
_TOPIC = 2
#: What has a coordinator.
_GROUP, _TRANSACTION = 0, 1

#: A call is given up after so long, tries included; Kafka's default.api.timeout.ms.
TIMEOUT_S = 60.0
#: One answer may take so long before it is asked for again; Kafka's request.timeout.ms.
REQUEST_S = 30.0
#: Connections that wait for the next task: more than a worker reads and writes at once.
_IDLE_MAX = 16
#: Between two tries.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Manners:
    """How a client presents itself, and how long it waits; equal ones can share a client."""

    client_id: str = "dovetail-spark"
    timeout_s: float = TIMEOUT_S
    request_s: float = REQUEST_S
    connect_s: float = CONNECT_S_MAX


USUAL_MANNERS = Manners()


class Retries:
    """The tries of one call: the pauses between them grow, until its time is over."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.begin()

    def begin(self) -> None:
        """Restarts the time-out, because there was progress."""
        self._deadline = time.monotonic() + self._timeout_s
        self._pause_s = _PAUSE_S_MIN

    def pause(self, error: DovetailError) -> None:
        """Waits before the next try. Raises `Unavailable` if there is no time for one."""
        if time.monotonic() + self._pause_s > self._deadline:
            raise Unavailable(f"{error}; gave up after {self._timeout_s:g} s") from error
        # Clients that lost one broker do not come back in step.
        time.sleep(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)


def commit_request(
    group: str, positions: Mapping[Partition, int], texts: Mapping[Partition, str]
) -> m.OffsetCommitRequest:
    """Stores positions for a group, from outside of it. Raises `InvalidInput`."""
    _check("group id", group)
    _check("metadata of a position", *texts.values())
    topics = tuple(
        m.OffsetCommitRequestTopic(
            name=topic,
            partitions=tuple(
                m.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=positions[topic, number],
                    committed_metadata=texts.get((topic, number), ""),
                )
                for number in numbers
            ),
        )
        for topic, numbers in _by_topic(positions).items()
    )
    return m.OffsetCommitRequest(group_id=group, member_id="", topics=topics)


def refused_positions(answer: m.OffsetCommitResponse) -> list[int]:
    """The error codes in the answer to such a request."""
    codes = [one.error_code for topic in answer.topics for one in topic.partitions]
    return [code for code in codes if code != ErrorCode.NONE]


class KafkaClient:
    """Requests to a cluster. Not for two threads at once; `client_of` gives each its own."""

    def __init__(
        self,
        brokers: Brokers,
        *,
        client_id: str = "dovetail-spark",
        timeout_s: float = TIMEOUT_S,
        request_s: float = REQUEST_S,
        connect_s: float = CONNECT_S_MAX,
    ) -> None:
        """Raises `InvalidInput` if the files of TLS cannot be used here."""
        self._bootstrap = brokers.addresses()
        self._login = brokers.login()
        self._client_id = client_id
        self.timeout_s = timeout_s
        self.request_s = min(request_s, timeout_s)
        self._connect_s = connect_s
        self._connections: dict[Address, Connection] = {}
        self._idle: list[Connection] = []
        self._leaders: dict[Partition, Address] = {}
        #: Of record batches, by its readers, since it was made.
        self.bytes_fetched = 0

    def retried(self, attempt: Callable[[], Answer], *, timeout_s: float | None = None) -> Answer:
        """The answer of `attempt`, tried again after what can pass until the time is over."""
        retries = Retries(self.timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                return attempt()
            except (Unavailable, Uncertain) as error:
                retries.pause(error)
            self.forget_leaders()

    def partitions(
        self,
        topics: Iterable[str] | None,
        *,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, list[int]]:
        """The partitions of topics, all topics for None. Raises `TopicUnknown`.

        With `create`, a topic that is not there is made if the broker does so by itself.
        """
        wanted = None if topics is None else sorted(set(topics))
        _check("name of a topic", *(wanted or ()))
        answer = self.retried(lambda: self._metadata(wanted, create=create), timeout_s=timeout_s)
        return {
            str(topic.name): sorted(p.partition_index for p in topic.partitions)
            for topic in answer.topics
            if wanted is not None or not topic.is_internal
        }

    def offsets(
        self, at_ms: Mapping[Partition, int], *, committed: bool = False
    ) -> dict[Partition, int]:
        """The first offset not older than a time, for each partition; -1 if there is none.

        `EARLIEST` and `LATEST` are the first offset and the one behind the last, for a reader of
        what is `committed` behind the last that is decided.
        """
        found: dict[Partition, int] = {}

        def attempt() -> None:
            for leader, mine in self._by_leader(set(at_ms) - set(found)).items():
                wanted = {partition: at_ms[partition] for partition in mine}
                answers = self.offsets_at(leader, wanted, committed=committed)
                for partition, answer in answers.items():
                    if isinstance(answer, DovetailError):
                        raise answer
                    found[partition] = answer

        self.retried(attempt)
        return found

    def offsets_at(
        self, leader: Address, at_ms: Mapping[Partition, int], *, committed: bool = False
    ) -> dict[Partition, int | DovetailError]:
        """As `offsets`, of one broker and in one try: for each partition its offset, or its error.

        Raises `Unavailable` if the broker does not answer.
        """
        request = m.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed),
            topics=_list_offsets_topics(at_ms),
        )
        answer = self._connection(leader).call(ApiKey.LIST_OFFSETS, request)
        return {
            (topic.name, one.partition_index): one.offset
            if one.error_code == ErrorCode.NONE
            else error_of(
                one.error_code, f"looking for an offset in {topic.name}-{one.partition_index}"
            )
            for topic in answer.topics
            for one in topic.partitions
        }

    def commit(
        self,
        group: str,
        positions: Mapping[Partition, int],
        *,
        metadata: Mapping[Partition, str] | None = None,
    ) -> None:
        """Stores positions for a group, from outside of it. Raises `Refused`."""
        if not positions:
            return
        request = commit_request(group, positions, metadata or {})

        def attempt() -> None:
            answer = self._coordinator(group).call(ApiKey.OFFSET_COMMIT, request)
            for topic in answer.topics:
                for one in topic.partitions:
                    self._check(one.error_code, f"committing positions of group {group!r}")

        self.retried(attempt)

    def committed(self, group: str) -> dict[Partition, tuple[int, str]]:
        """The positions that are stored for a group, each with its metadata."""
        _check("group id", group)
        request = m.OffsetFetchRequest(group_id=group, topics=None)

        def attempt() -> dict[Partition, tuple[int, str]]:
            answer = self._coordinator(group).call(ApiKey.OFFSET_FETCH, request)
            self._check(answer.error_code, f"reading positions of group {group!r}")
            return {
                (topic.name, one.partition_index): (one.committed_offset, one.metadata or "")
                for topic in answer.topics
                for one in topic.partitions
                if one.committed_offset >= 0
            }

        return self.retried(attempt)

    def new_producer(self, *, timeout_s: float | None = None) -> tuple[int, int]:
        """The id and the epoch of a new producer."""
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)

        def attempt() -> tuple[int, int]:
            answer = self._any(lambda connection: connection.call(ApiKey.INIT_PRODUCER_ID, request))
            self._check(answer.error_code, "asking for a producer id")
            return answer.producer_id, answer.producer_epoch

        return self.retried(attempt, timeout_s=timeout_s)

    def topic_setting(self, topic: str, name: str, *, timeout_s: float | None = None) -> str | None:
        """A setting of a topic; None if the broker has none of that name."""
        wanted = m.DescribeConfigsRequestResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=(name,)
        )
        request = m.DescribeConfigsRequest(resources=(wanted,))

        def attempt() -> str | None:
            answer = self._any(lambda connection: connection.call(ApiKey.DESCRIBE_CONFIGS, request))
            (found,) = answer.results
            self._check(found.error_code, f"looking up {name} of topic {topic!r}")
            return next((one.value for one in found.configs if one.name == name), None)

        return self.retried(attempt, timeout_s=timeout_s)

    def transactions(self) -> list[m.DescribeTransactionsResponseTransaction]:
        """Every transactional id, from the brokers that coordinate them."""

        def attempt() -> list[m.DescribeTransactionsResponseTransaction]:
            found: list[m.DescribeTransactionsResponseTransaction] = []
            for broker in self._metadata([], create=False).brokers:
                connection = self._connection(Address(broker.host, broker.port))
                request = m.ListTransactionsRequest(state_filters=(), producer_id_filters=())
                listed = connection.call(ApiKey.LIST_TRANSACTIONS, request)
                self._check(listed.error_code, "listing transactions")

                ids = tuple(one.transactional_id for one in listed.transaction_states)
                described = connection.call(
                    ApiKey.DESCRIBE_TRANSACTIONS,
                    m.DescribeTransactionsRequest(transactional_ids=ids),
                )
                found += [one for one in described.transaction_states if not one.error_code]
            return found

        return self.retried(attempt)

    def take_over(self, transactional_id: str, *, timeout_ms: int) -> None:
        """Fences every producer of a transactional id; what it has open is aborted."""
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )

        def attempt() -> None:
            coordinator = self._coordinator(transactional_id, kind=_TRANSACTION)
            answer = coordinator.call(ApiKey.INIT_PRODUCER_ID, request)
            self._check(answer.error_code, f"taking over transactional id {transactional_id!r}")

        self.retried(attempt)

    def share_groups(self) -> list[str]:
        """The names of all share groups, from the brokers that coordinate them."""

        def attempt() -> list[str]:
            found: set[str] = set()
            for listed in self.ask_brokers(ApiKey.LIST_GROUPS, m.ListGroupsRequest()):
                self._check(listed.error_code, "listing groups")
                found |= {one.group_id for one in listed.groups if one.protocol_type == "share"}
            return sorted(found)

        return self.retried(attempt)

    def ask_brokers(self, api: ApiKey, request: object) -> list[Any]:
        """What every broker answers, in one try. Raises `Unavailable` if one does not."""
        brokers = self._metadata([], create=False).brokers
        connections = [self._connection(Address(one.host, one.port)) for one in brokers]
        return [connection.call(api, request) for connection in connections]

    def ask_coordinator(self, group: str, api: ApiKey, request: object) -> Any:
        """What the coordinator of a group answers, whatever it is. Raises `Unavailable`."""
        _check("group id", group)
        return self.retried(lambda: self._coordinator(group).call(api, request))

    def borrow(self, partition: Partition) -> Connection:
        """A connection to who leads a partition, for the caller alone until it is given back."""
        address = self._leader(partition)
        for connection in self._idle:
            if connection.address == address:
                self._idle.remove(connection)
                return connection
        return self._new_connection(address)

    def borrow_coordinator(self, group: str) -> Connection:
        """A connection to who coordinates a group, for the caller alone, who closes it."""
        return self._new_connection(self._coordinator(group).address)

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection, on which no answer is outstanding, for the next who borrows."""
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def forget_leaders(self) -> None:
        """The next request asks for the leaders again."""
        self._leaders.clear()

    def close(self) -> None:
        """Closes every connection; a later call opens them again."""
        for connection in (*self._connections.values(), *self._idle):
            connection.close()

    def _coordinator(self, group: str, *, kind: int = _GROUP) -> Connection:
        request = m.FindCoordinatorRequest(key=group, key_type=kind)
        answer = self._any(lambda connection: connection.call(ApiKey.FIND_COORDINATOR, request))
        self._check(answer.error_code, f"finding the coordinator of {group!r}")
        return self._connection(Address(answer.host, answer.port))

    def metadata(self, wanted: Iterable[str] | None, *, create: bool = False) -> m.MetadataResponse:
        """Brokers, and topics with their leaders or errors, in one try; all topics for None.

        Raises `Unavailable`.
        """
        request = m.MetadataRequest(
            topics=None
            if wanted is None
            else tuple(m.MetadataRequestTopic(name=name) for name in wanted),
            allow_auto_topic_creation=create,
        )
        answer: m.MetadataResponse = self._any(
            lambda connection: connection.call(ApiKey.METADATA, request)
        )
        return answer

    def _metadata(self, wanted: list[str] | None, *, create: bool) -> m.MetadataResponse:
        answer = self.metadata(wanted, create=create)
        brokers = {one.node_id: Address(one.host, one.port) for one in answer.brokers}
        for topic in answer.topics:
            if create and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise Unavailable(f"topic {topic.name!r} is being created")
            self._check(topic.error_code, f"looking up topic {topic.name!r}")
            for one in topic.partitions:
                if one.leader_id in brokers:
                    self._leaders[str(topic.name), one.partition_index] = brokers[one.leader_id]
        return answer

    def _any(self, ask: Callable[[Connection], Answer]) -> Answer:
        """The answer of the first broker that has one. Raises `Unavailable`."""
        known = dict.fromkeys([*self._connections, *self._bootstrap])
        reasons = []
        for address in known:
            try:
                return ask(self._connection(address))
            except Unavailable as error:
                reasons.append(str(error))
        raise Unavailable("no broker answers: " + "; ".join(dict.fromkeys(reasons)))

    def _leader(self, partition: Partition) -> Address:
        if partition not in self._leaders:
            answer = self._metadata([partition[0]], create=False)
            numbers = {one.partition_index for one in answer.topics[0].partitions}
            if partition[1] not in numbers:
                raise TopicUnknown(f"topic {partition[0]!r} has no partition {partition[1]}")
            if partition not in self._leaders:
                raise Unavailable(f"{name_of(partition)} has no leader at the moment")
        return self._leaders[partition]

    def _by_leader(self, partitions: Iterable[Partition]) -> dict[Address, list[Partition]]:
        grouped: dict[Address, list[Partition]] = {}
        for partition in sorted(partitions):
            grouped.setdefault(self._leader(partition), []).append(partition)
        return grouped

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = self._new_connection(address)
        return self._connections[address]

    def _new_connection(self, address: Address) -> Connection:
        return Connection(
            address,
            client_id=self._client_id,
            timeout_s=self.request_s,
            connect_s=self._connect_s,
            login=self._login,
        )

    def _check(self, code: int, doing: str) -> None:
        if code != ErrorCode.NONE:
            raise error_of(code, doing)


class _Kept:
    """The clients of one thread; they are closed when it ends."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.clients: dict[tuple[Brokers, Manners], KafkaClient] = {}

    def __del__(self) -> None:
        for client in self.clients.values():
            client.close()


_of_thread = threading.local()


def client_of(brokers: Brokers, manners: Manners = USUAL_MANNERS) -> KafkaClient:
    """The client of this thread for a cluster, its connections kept from task to task."""
    kept: _Kept | None = getattr(_of_thread, "kept", None)
    # A forked worker must not share its parent's sockets.
    if kept is None or kept.process != os.getpid():
        kept = _of_thread.kept = _Kept()
    if (brokers, manners) not in kept.clients:
        kept.clients[brokers, manners] = KafkaClient(brokers, **asdict(manners))
    return kept.clients[brokers, manners]


def name_of(partition: Partition) -> str:
    """`topic-number`, as messages name it."""
    return f"{partition[0]}-{partition[1]}"


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, number in partitions:
        grouped.setdefault(topic, []).append(number)
    return grouped


def _list_offsets_topics(at_ms: Mapping[Partition, int]) -> tuple[m.ListOffsetsRequestTopic, ...]:
    return tuple(
        m.ListOffsetsRequestTopic(
            name=topic,
            partitions=tuple(
                m.ListOffsetsRequestPartition(
                    partition_index=number, timestamp=at_ms[topic, number]
                )
                for number in numbers
            ),
        )
        for topic, numbers in _by_topic(at_ms).items()
    )


def _check(what: str, *texts: str) -> None:
    """Raises `InvalidInput` for what no request has room for: a broker would only hang up."""
    for text in texts:
        encoded(text, what, bytes_max=KAFKA_TEXT_BYTES_MAX)
