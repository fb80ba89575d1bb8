"""The outbox over HTTP: what waits, how long, who has the locks, what went wrong."""

from typing import TYPE_CHECKING

from msgspec import Struct

from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from dovetail.outbox.status import OutboxStatus


class OutboxShard(Struct, frozen=True):
    """One lock of a topic; times are in milliseconds from now."""

    shard: int
    locked_by: str | None
    locked_ms: int | None
    term: int
    error: str | None
    retries: int
    retry_ms: int | None
    sent: int


class OutboxTopic(Struct, frozen=True):
    """What waits for a topic; `oldest_ms` is how long the first one has waited."""

    topic: str
    pending: int
    oldest_ms: int
    dead: int
    sent: int
    sent_per_second: float | None
    shards: list[OutboxShard]


class OutboxShown(Struct, frozen=True):
    """The outbox; `trouble` is why its database could not be asked."""

    configured: bool
    trouble: str | None
    topics: list[OutboxTopic]


async def show_outbox(desk: Desk, _: Asked[None, None]) -> OutboxShown:
    """The outbox in the database that `outbox.database` names on this node."""
    return await outbox_shown(desk)


async def outbox_shown(desk: Desk) -> OutboxShown:
    """The outbox, as the page and the live stream show it."""
    if not desk.outbox.configured:
        return OutboxShown(False, None, [])

    def read(engine: "Engine") -> "OutboxStatus":
        from dovetail.outbox.status import read_status

        return read_status(engine)

    try:
        status = await desk.outbox.run(read)
    except DovetailError as error:
        return OutboxShown(True, str(error), [])
    topics = []
    for topic in status.topics:
        topics.append(
            OutboxTopic(
                topic=topic.topic,
                pending=topic.pending,
                oldest_ms=topic.oldest_ms,
                dead=topic.dead,
                sent=topic.sent,
                sent_per_second=desk.rate(f"outbox/{topic.topic}", topic.sent),
                shards=[
                    OutboxShard(
                        shard=shard.shard,
                        locked_by=shard.locked_by,
                        locked_ms=shard.locked_ms,
                        term=shard.term,
                        error=shard.error,
                        retries=shard.retries,
                        retry_ms=shard.retry_ms,
                        sent=shard.sent,
                    )
                    for shard in topic.shards
                ],
            )
        )
    return OutboxShown(True, None, topics)


ENDPOINTS = (Endpoint("GET", "/v1/outbox", show_outbox, "Show the outbox", OutboxShown),)
