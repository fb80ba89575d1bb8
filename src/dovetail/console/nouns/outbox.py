"""The outbox over HTTP: what waits, how long, which relay has the locks, what went wrong."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import DovetailError, NotFound, Unavailable

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

Result = TypeVar("Result")

#: Longest wait for the database.
CALL_S_MAX = 8.0


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
    shards: list[OutboxShard]
    sent_per_second: float | None = None


class OutboxShown(Struct, frozen=True):
    """The outbox; `trouble` is why its database could not be asked."""

    configured: bool
    trouble: str | None
    topics: list[OutboxTopic]


async def run_on_outbox(desk: Desk, work: "Callable[[Engine], Result]") -> Result:
    """The result of `work`. Raises `NotFound` without an outbox, `Unavailable` if it fails."""
    if desk.outbox is None:
        raise NotFound("this node knows no outbox; set outbox.database to its address")
    try:
        async with desk.outbox_turn, asyncio.timeout(CALL_S_MAX):
            return await desk.threads.run(desk.outbox.run, work)
    except TimeoutError as error:
        raise Unavailable(f"the outbox's database did not answer in {CALL_S_MAX:g} s") from error


async def show_outbox(desk: Desk, _: Asked[None, None]) -> OutboxShown:
    """The outbox in the database that `outbox.database` names on this node."""
    if desk.outbox is None:
        return OutboxShown(False, None, [])

    try:
        topics = await run_on_outbox(desk, _read)
    except DovetailError as error:
        return OutboxShown(True, str(error), [])
    rates = {topic.topic: desk.rate(f"outbox/{topic.topic}", topic.sent) for topic in topics}
    return OutboxShown(
        True,
        None,
        [msgspec.structs.replace(topic, sent_per_second=rates[topic.topic]) for topic in topics],
    )


def _read(engine: "Engine") -> list[OutboxTopic]:
    from dovetail.outbox.status import read_status

    return msgspec.convert(read_status(engine).topics, list[OutboxTopic], from_attributes=True)


ENDPOINTS = (Endpoint("GET", "/v1/outbox", show_outbox, "Show the outbox", OutboxShown),)
