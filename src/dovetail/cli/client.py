"""The Kafka client of a command: opened in one way, with advice for the user."""

import typer

from dovetail.admin.kafka import Kafka, Partition
from dovetail.cli.options import target_of
from dovetail.cli.program import program
from dovetail.errors import TopicUnknown


def kafka_of(ctx: typer.Context, bootstrap: str | None, timeout: str | None) -> Kafka:
    """A client of the node. Raises `Unreachable` at once if nothing listens at its address."""
    kafka = target_of(ctx, bootstrap, timeout).kafka()
    ctx.call_on_close(kafka.close)
    kafka.check()
    return kafka


def partitions_of(kafka: Kafka, topic: str) -> list[Partition]:
    """The partitions of a topic. Raises `TopicUnknown`, with the command that creates it."""
    metadata = kafka.metadata()
    try:
        metadata.topic(topic)
    except TopicUnknown as error:
        raise TopicUnknown(
            f"{error} on {kafka.bootstrap}\nTo create it: {program()} topic create {topic}"
        ) from error
    return metadata.partitions(topic)


def no_partition(topic: str, partition: int, *, count: int) -> TopicUnknown:
    """The error for a partition that a topic of `count` partitions does not have."""
    there = "only 0" if count == 1 else f"only 0 to {count - 1}"
    return TopicUnknown(f"topic {topic!r} has no partition {partition}, {there}")
