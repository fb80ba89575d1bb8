"""A Kafka client for the commands: connection, calls, and errors that say what to do.

librdkafka retries in silence until a timeout and then says "transport failure". So the address is
first tried with a plain connection, which fails at once and with the reason; and every error code
is turned into one of our own errors.
"""

import difflib
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # Its exports are implicit.
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from dovetail.cli.options import Target
from dovetail.cli.position import Position
from dovetail.cli.program import program
from dovetail.errors import DovetailError, InvalidInput, TopicUnknown, Unreachable
from dovetail.kafka.client.librdkafka import SILENT, meaning_of

__all__ = [
    "EARLIEST",
    "LATEST",
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "NewPartitions",
    "NewTopic",
    "Partition",
    "ResourceType",
    "bounds_of",
    "call",
    "check_reachable",
    "client_config",
    "connect",
    "error_of",
    "is_internal",
    "no_partition",
    "offsets_at",
    "partitions_of",
    "resolve",
    "topic_of",
    "topics_metadata",
    "topics_of",
    "wait_for",
]

PORT_DEFAULT = 9092

EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: Time to try one address. A node on this machine or in this network answers within milliseconds.
CONNECT_S_MAX = 3.0

#: A partition of a topic, in the form that is easy to compare and to sort.
Partition = tuple[str, int]

_ADVERTISED_HINT = (
    "If it is busy, give it more --timeout. If it runs elsewhere, see whether the address "
    "that it tells clients can be reached from here (kafka.advertised_host on the node)."
)

#: What names of topics begin with that the node keeps for itself.
_INTERNAL_PREFIX = "__dovetail_"
_INTERNAL_OF_KAFKA = frozenset({"__consumer_offsets", "__transaction_state"})


def client_config(target: Target, **more: object) -> dict[str, Any]:
    """Configuration that every client of the command line shares; names use `_` for `.`."""
    return {
        "bootstrap.servers": target.bootstrap,
        "client.id": "dovetail-cli",
        # Errors reach us by results; librdkafka's own lines would only repeat them. There is no
        # error callback either: a Ctrl-C while one runs is lost, and the call ends in SystemError.
        "log_level": 0,
        "log.connection.close": False,
        "socket.timeout.ms": max(1000, int(target.timeout_s * 1000)),
        "socket.nagle.disable": True,
        **target.security,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def connect(target: Target) -> AdminClient:
    """An admin client for the node. Raises `Unreachable` at once if nothing listens there."""
    check_reachable(target)
    return AdminClient(client_config(target))


def check_reachable(target: Target) -> None:
    """Raises `Unreachable` with the reason unless one of the addresses takes a connection."""
    reasons = []
    for host, port in parse_bootstrap(target.bootstrap):
        try:
            with socket.create_connection((host, port), min(target.timeout_s, CONNECT_S_MAX)):
                return
        except OSError as error:
            reasons.append(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
    raise Unreachable(
        f"cannot connect to {'; '.join(reasons)}.\n"
        f"Is a node running? Start one with `{program()} up`, or name its address with --bootstrap."
    )


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses of `host:port[,host:port...]`. Raises `InvalidInput`."""
    addresses = []
    for text in bootstrap.split(","):
        host, colon, port = text.strip().rpartition(":")
        if not colon:
            host, port = port, str(PORT_DEFAULT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) <= 65535:
            raise InvalidInput(f"{text!r} is no address; write host:port, such as 127.0.0.1:9092")
        addresses.append((host, int(port)))
    return addresses


def call(doing: str, target: Target, action: Callable[[], Any]) -> Any:
    """The result of `action`, with its Kafka error as one of ours; `doing` is what was tried."""
    try:
        return action()
    except KafkaException as error:
        raise error_of(doing, error, target) from error
    except TimeoutError as error:
        raise _silent(doing, target, "no answer at all") from error
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{doing}: {error}") from error


def wait_for(doing: str, target: Target, future: "Future[Any]") -> Any:
    """The result of an admin call. Raises as `call`."""
    return call(doing, target, lambda: future.result(target.timeout_s + 5.0))


def error_of(doing: str, given: KafkaError | KafkaException, target: Target) -> DovetailError:
    """The error of ours that says what `given` means."""
    error: KafkaError = given.args[0] if isinstance(given, KafkaException) else given
    if error.code() in SILENT:
        return _silent(doing, target, error.str())
    if error.code() == KafkaError._MSG_TIMED_OUT:
        return Unreachable(
            f"{doing}: the node at {target.bootstrap} took the connection and then did not "
            f"acknowledge in time; what was sent may or may not be stored.\n{_ADVERTISED_HINT}"
        )
    return meaning_of(doing, error)


def _silent(doing: str, target: Target, reason: str) -> Unreachable:
    return Unreachable(
        f"{doing}: the node at {target.bootstrap} took the connection and then did not "
        f"answer within {target.timeout_s:g} s ({reason}).\n{_ADVERTISED_HINT}"
    )


def topics_metadata(admin: AdminClient, target: Target) -> Any:
    """Brokers and topics as the node tells them. Never creates a topic."""
    return call("listing topics", target, lambda: admin.list_topics(timeout=target.timeout_s))


def topics_of(admin: AdminClient, target: Target) -> dict[str, TopicMetadata]:
    """All topics of the node by name. Never creates one."""
    topics: dict[str, TopicMetadata] = topics_metadata(admin, target).topics
    return topics


def topic_of(
    admin: AdminClient, target: Target, topic: str, *, advise_create: bool = True
) -> TopicMetadata:
    """One topic. Raises `TopicUnknown`, with the nearest name if one is near."""
    topics = topics_of(admin, target)
    if topic in topics:
        return topics[topic]
    near = difflib.get_close_matches(topic, list(topics), n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif advise_create:
        hint = f"create it: {program()} topic create {topic}"
    else:
        hint = f"`{program()} topic list` shows what there is"
    raise TopicUnknown(f"no topic {topic!r} on {target.bootstrap}; {hint}")


def no_partition(topic: str, partition: int, *, count: int) -> TopicUnknown:
    """The error for a partition that a topic of `count` partitions does not have."""
    there = "only 0" if count == 1 else f"only 0 to {count - 1}"
    return TopicUnknown(f"topic {topic!r} has no partition {partition}, {there}")


def is_internal(topic: str) -> bool:
    """Whether the node keeps this topic for itself, by its name."""
    return topic.startswith(_INTERNAL_PREFIX) or topic in _INTERNAL_OF_KAFKA


def partitions_of(metadata: TopicMetadata) -> list[Partition]:
    """The partitions of a topic, in order."""
    return [(str(metadata.topic), number) for number in sorted(metadata.partitions)]


def offsets_at(
    admin: AdminClient, target: Target, partitions: Iterable[Partition], spec: OffsetSpec
) -> dict[Partition, int]:
    """The offset that `spec` names in each partition; -1 where there is none."""
    request = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not request:
        return {}
    futures = call(
        "listing offsets",
        target,
        lambda: admin.list_offsets(request, request_timeout=target.timeout_s),
    )
    return {
        (key.topic, key.partition): wait_for("listing offsets", target, future).offset
        for key, future in futures.items()
    }


def bounds_of(
    admin: AdminClient, target: Target, partitions: Iterable[Partition]
) -> dict[Partition, tuple[int, int]]:
    """The first offset and the next one to be written, of each partition."""
    listed = list(partitions)
    first = offsets_at(admin, target, listed, EARLIEST)
    end = offsets_at(admin, target, listed, LATEST)
    return {partition: (first[partition], end[partition]) for partition in listed}


def resolve(
    admin: AdminClient,
    target: Target,
    position: Position,
    bounds: Mapping[Partition, tuple[int, int]],
) -> dict[Partition, int]:
    """The offset of `position` in each partition, moved into what the partition holds."""
    if position.kind == "time":
        spec = OffsetSpec.for_timestamp(position.number)
        found = offsets_at(admin, target, bounds, spec)
        return {
            partition: found[partition] if found[partition] >= 0 else end
            for partition, (_, end) in bounds.items()
        }
    if position.kind == "offset":
        return {
            partition: min(max(position.number, first), end)
            for partition, (first, end) in bounds.items()
        }
    side = 0 if position.kind == "beginning" else 1
    return {partition: bound[side] for partition, bound in bounds.items()}
