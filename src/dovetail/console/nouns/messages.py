"""Messages of a topic over HTTP: read them by offset, time or key, and produce one."""

import base64
import binascii
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin.kafka import Partition, check_not_internal
from dovetail.admin.positions import NUMBER_MAX, Bounds, all_bounds_of, parse_position, resolve
from dovetail.admin.records import (
    NewRecord,
    ReadLimits,
    Record,
    Span,
    everything,
    last_spans,
    read,
    write,
)
from dovetail.console.desk import Desk
from dovetail.console.web import content
from dovetail.console.web.endpoint import MESSAGE_BODY_BYTES_MAX, Asked, Endpoint
from dovetail.errors import InvalidInput, TopicUnknown

PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: Three of them, percent-encoded, must fit into the header block of a request (16 KiB).
_Search = Annotated[str, Meta(max_length=300)]


class MessagesQuery(Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from"}):
    """Which messages."""

    partition: Annotated[
        PartitionNumber | None, Meta(description="Only this partition; all without it.")
    ] = None
    start: Annotated[
        str,
        Meta(
            max_length=100,
            description="beginning, end (the last ones), offset:N, time:MS or time:ISO.",
        ),
    ] = "end"
    before: Annotated[
        Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None,
        Meta(description="Instead of `from`: the last ones below this offset; needs `partition`."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="Messages to show.")] = 50
    key: Annotated[_Search | None, Meta(description="Only messages with this key.")] = None
    key_base64: Annotated[
        _Search | None, Meta(description="Only messages with this key, given in base64.")
    ] = None
    contains: Annotated[
        _Search | None, Meta(description="Only messages whose value contains this text.")
    ] = None
    scan: Annotated[
        int, Meta(ge=1, le=100_000, description="Most messages to examine in a search.")
    ] = 10_000
    value_bytes: content.ShownBytes = content.SHOWN_BYTES_DEFAULT


class MessageShown(Struct, frozen=True):
    """A message in a topic."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str
    key: content.Content | None
    value: content.Content | None
    headers: list[content.HeaderShown]


class MessagePage(Struct, frozen=True):
    """Messages, newest first.

    `next` is where each partition goes on (`from=offset:N`), `previous` where this page begins in
    it (`before=N`). `complete` is false if a limit ended the search before its end.
    """

    topic: str
    messages: list[MessageShown]
    scanned: int
    complete: bool
    next: dict[str, int]
    previous: dict[str, int]


class MessageNew(Struct, frozen=True, forbid_unknown_fields=True):
    """A message to produce."""

    value: content.Given | None = None
    key: content.Given | None = None
    headers: content.HeadersGiven = []
    partition: PartitionNumber | None = None
    timestamp_ms: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None = None


class MessageStored(Struct, frozen=True):
    """Where a message lies."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


async def browse(desk: Desk, asked: Asked[MessagesQuery, None]) -> MessagePage:
    """Nothing is consumed: no group moves. A search looks at `scan` messages at most."""
    name, query = asked.path["topic"], asked.query
    position = parse_position(query.start)
    wanted = _filter(query)
    if query.before is not None and query.partition is None:
        raise InvalidInput("`before` is an offset of one partition; give `partition` too")
    bounds = await desk.kafka.run(all_bounds_of, _places(desk, name, query.partition))

    backward = query.before is not None or position.kind == "end"
    if backward:
        spans = _last_spans(bounds, query, searching=wanted is not everything)
        limits = ReadLimits(scan=max(query.scan, query.limit))
    else:
        starts = await desk.kafka.run(resolve, position, bounds)
        spans = [Span(place[1], starts[place], bound.end) for place, bound in bounds.items()]
        limits = ReadLimits(scan=query.scan, keep=query.limit)
    reading = await desk.kafka.run(read, name, spans, limits, wanted=wanted)

    kept = sorted(reading.records, key=_age, reverse=True)
    ends = {str(partition): bound.end for (_, partition), bound in bounds.items()}
    starts_at = {str(span.partition): span.start for span in spans}
    if backward:
        kept = kept[: query.limit]
        # Sorted from the newest on, so the oldest of each partition is what stays.
        shown_from = {str(record.partition): record.offset for record in kept}
        ahead, previous = ends, ends | starts_at | shown_from
    else:
        ahead = ends | {str(partition): offset for partition, offset in reading.next.items()}
        previous = starts_at
    return MessagePage(
        topic=name,
        messages=[_shown(record, query.value_bytes) for record in kept],
        scanned=reading.scanned,
        complete=reading.complete,
        next=ahead,
        previous=previous,
    )


def _places(desk: Desk, name: str, partition: int | None) -> list[Partition]:
    count = desk.insight.topic(name).partitions
    if partition is None:
        return [(name, number) for number in range(count)]
    if partition >= count:
        raise TopicUnknown(f"topic {name!r} has no partition {partition}, only 0 to {count - 1}")
    return [(name, partition)]


def _age(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.offset, record.partition


def _filter(query: MessagesQuery) -> Callable[[Record], bool]:
    """What a search is for. Raises `InvalidInput`."""
    if query.key is not None and query.key_base64 is not None:
        raise InvalidInput("give `key` or `key_base64`, not both")
    key = None if query.key is None else query.key.encode(errors="surrogateescape")
    if query.key_base64 is not None:
        try:
            key = base64.b64decode(query.key_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(f"key_base64 is not base64: {error}") from error
    if key is None and query.contains is None:
        return everything
    text = (query.contains or "").encode(errors="surrogateescape")
    return lambda record: (key is None or record.key == key) and text in (record.value or b"")


def _last_spans(
    bounds: dict[Partition, Bounds], query: MessagesQuery, *, searching: bool
) -> list[Span]:
    """The last records of each partition: as many as a page shows, or as a search looks at."""
    share = -(-query.scan // max(1, len(bounds))) if searching else query.limit
    return last_spans(bounds, share, before=query.before)


def _shown(record: Record, bytes_max: int) -> MessageShown:
    return MessageShown(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        timestamp_type=record.timestamp_type,
        key=content.shown(record.key, bytes_max),
        value=content.shown(record.value, bytes_max),
        headers=content.shown_headers(record.headers, bytes_max),
    )


async def produce(desk: Desk, asked: Asked[None, MessageNew]) -> MessageStored:
    """Stored and acknowledged when this returns. Without a partition, the key decides."""
    name, new = asked.path["topic"], asked.body
    check_not_internal([name])
    _places(desk, name, new.partition)

    record = NewRecord(
        topic=name,
        key=content.given_bytes(new.key, "key"),
        value=content.given_bytes(new.value, "value"),
        headers=tuple(content.given_headers(new.headers)),
        partition=new.partition,
        timestamp_ms=new.timestamp_ms,
    )
    (written,) = await desk.kafka.run(write, [record])
    return MessageStored(name, written.partition, written.offset, written.timestamp_ms)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/topics/{topic}/messages",
        browse,
        "Look at messages",
        MessagePage,
        query=MessagesQuery,
    ),
    Endpoint(
        "POST",
        "/v1/topics/{topic}/messages",
        produce,
        "Produce a message",
        MessageStored,
        body=MessageNew,
        status=201,
        action="message.produce",
        body_bytes_max=MESSAGE_BODY_BYTES_MAX,
    ),
)
