"""Messages of a timeline for programs of any language: receive, extend, done, retry, dead.

A received message is leased: until its lease ends no other consumer gets it. Its `id` and `version`
name the lease, and a request to extend or finish it needs both; the store refuses a version that is
not the last one. Each item of a batch has its own outcome, in the order of the request:

    ok      it is done
    dead    retried for the last time: it is a dead letter now
    gone    no such message: it was done, cancelled, or is a dead letter
    stale   the lease ended, and another consumer has the message

Nothing here is audited: these are messages in flight, not changes by an operator.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail.admin import timelines
from dovetail.background import first_of
from dovetail.console.desk import Desk
from dovetail.console.web import content
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import InvalidInput, Throttled
from dovetail.timeline.config import check_name
from dovetail.timeline.frames import WAIT_MS_MAX
from dovetail.timeline.message import (
    Handle,
    Leased,
    MessageId,
    Number,
    Reason,
    Status,
    TimeMs,
    Version,
)

#: Callers who wait at once, each on a connection of its own. What is left of all connections
#: (`console/web/http.py`) is for probes, people, and those who finish what they have received.
RECEIVERS_MAX = 160
#: Messages of one call: what makes the cost of a call vanish beside theirs.
RECEIVED_MAX = 1_000
#: A thousand leases, each with a reason of the greatest length.
LEASES_BODY_BYTES_MAX = 8 * 1024 * 1024

_LeaseMs = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Receive(Struct, frozen=True, forbid_unknown_fields=True):
    """How many messages, how long to wait for the first of them, and for how long they are leased.

    Calls under one `consumer` name share the work; give each program a name of its own.
    """

    limit: Annotated[int, Meta(ge=1, le=RECEIVED_MAX)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    lease_ms: _LeaseMs = 30_000
    consumer: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "http"


class ReceivedMessage(Struct, frozen=True):
    """A message and its lease. `attempt` counts from 1."""

    id: int
    version: int
    due_ms: int
    lease_until_ms: int
    attempt: int
    priority: int
    key: str | None
    order_key: str | None
    body: content.Content
    headers: list[content.HeaderShown]


class Received(Struct, frozen=True):
    """Messages, the first to be handled first; none if none was due in time."""

    messages: list[ReceivedMessage]


class LeaseHeld(Struct, frozen=True, forbid_unknown_fields=True):
    """A lease, as it was received."""

    id: Number
    version: _Version


class LeaseRetried(LeaseHeld, frozen=True, forbid_unknown_fields=True):
    """A lease given back: the message comes again after `delay_ms`, or as the timeline says."""

    delay_ms: TimeMs | None = None
    reason: Reason = ""


class LeaseRejected(LeaseHeld, frozen=True, forbid_unknown_fields=True):
    """A lease on a message that shall not come again."""

    reason: Reason = ""


class LeasesExtended(Struct, frozen=True, forbid_unknown_fields=True):
    """Leases that shall end `lease_ms` from now."""

    leases: Annotated[list[LeaseHeld], Meta(min_length=1, max_length=RECEIVED_MAX)]
    lease_ms: _LeaseMs


class LeasesDone(Struct, frozen=True, forbid_unknown_fields=True):
    """Leases on messages that were handled."""

    leases: Annotated[list[LeaseHeld], Meta(min_length=1, max_length=RECEIVED_MAX)]


class LeasesRetried(Struct, frozen=True, forbid_unknown_fields=True):
    """Leases on messages that shall come again."""

    leases: Annotated[list[LeaseRetried], Meta(min_length=1, max_length=RECEIVED_MAX)]


class LeasesRejected(Struct, frozen=True, forbid_unknown_fields=True):
    """Leases on messages that shall be dead letters."""

    leases: Annotated[list[LeaseRejected], Meta(min_length=1, max_length=RECEIVED_MAX)]


class LeaseOutcomes(Struct, frozen=True):
    """What became of each lease, in the order of the request."""

    outcomes: list[Literal["ok", "dead", "gone", "stale"]]


_OUTCOMES: dict[Status, Literal["ok", "dead", "gone", "stale"]] = {
    Status.OK: "ok",
    Status.DEAD: "dead",
    Status.GONE: "gone",
    Status.STALE: "stale",
}


async def receive_messages(desk: Desk, asked: Asked[None, Receive]) -> Received:
    """Waits up to `wait_ms` for a message that is due, and answers with all that are, up to
    `limit`. Each is leased for `lease_ms`: finish it (`done`, `retry`, `dead`) or extend its lease
    before that, or another consumer receives it. What a caller does not wait for is not lost: it
    goes to another one at once."""
    name, receiver, wanted = check_name(asked.path["timeline"]), desk.receiver(), asked.body
    if desk.receivers >= RECEIVERS_MAX:
        raise Throttled(
            f"{RECEIVERS_MAX} callers receive from this node at this moment; wait on fewer "
            "connections, with a larger limit, or ask another node"
        )
    found: list[Leased] = []

    async def receive() -> None:
        found.extend(
            await receiver.receive(
                name,
                consumer=wanted.consumer,
                limit=wanted.limit,
                wait_ms=wanted.wait_ms,
                lease_ms=wanted.lease_ms,
            )
        )

    desk.receivers += 1
    try:
        _, gone = await first_of(receive(), asked.gone())
    finally:
        desk.receivers -= 1
    if gone and found:
        await receiver.give_back(name, found)
    return Received([_received(message) for message in found])


async def extend_leases(desk: Desk, asked: Asked[None, LeasesExtended]) -> LeaseOutcomes:
    """For a handler that takes longer than its lease. Each lease is at most as long as the timeline
    allows (`lease_ms_max`)."""
    name, given = check_name(asked.path["timeline"]), asked.body
    handles = _handles(given.leases)
    return _outcomes(await desk.receiver().extend(name, handles, lease_ms=given.lease_ms))


async def finish_messages(desk: Desk, asked: Asked[None, LeasesDone]) -> LeaseOutcomes:
    """Removes messages that were handled."""
    name = check_name(asked.path["timeline"])
    return _outcomes(await desk.receiver().done(name, _handles(asked.body.leases)))


async def retry_messages(desk: Desk, asked: Asked[None, LeasesRetried]) -> LeaseOutcomes:
    """Has messages come again. Without `delay_ms` each rests longer than the time before. One that
    had its last attempt is a dead letter, with its reason."""
    name, leases = check_name(asked.path["timeline"]), asked.body.leases
    handles = _handles(leases)
    given = [
        (handle, lease.delay_ms, lease.reason)
        for handle, lease in zip(handles, leases, strict=True)
    ]
    return _outcomes(await desk.receiver().retry(name, given))


async def reject_messages(desk: Desk, asked: Asked[None, LeasesRejected]) -> LeaseOutcomes:
    """Makes dead letters of messages, whatever attempts they have left; `dead` is what they are
    then, and the outcome that means it is done."""
    name, leases = check_name(asked.path["timeline"]), asked.body.leases
    handles = _handles(leases)
    given = [(handle, lease.reason) for handle, lease in zip(handles, leases, strict=True)]
    return _outcomes(await desk.receiver().dead(name, given))


def _handles(leases: Iterable[LeaseHeld]) -> list[Handle]:
    """The leases. Raises `InvalidInput` if one message is named twice."""
    handles = [Handle(MessageId(lease.id), Version(lease.version)) for lease in leases]
    if len({handle.id for handle in handles}) < len(handles):
        raise InvalidInput("a message is named twice in one request")
    return handles


def _outcomes(statuses: Iterable[Status]) -> LeaseOutcomes:
    return LeaseOutcomes([_OUTCOMES[status] for status in statuses])


def _received(message: Leased) -> ReceivedMessage:
    body = content.shown(message.body, len(message.body))
    assert body is not None
    headers: list[content.HeaderShown] = []
    if message.headers:
        headers = content.shown_headers(timelines.headers_of(message), len(message.headers))
    return ReceivedMessage(
        id=message.id,
        version=message.version,
        due_ms=message.due_ms,
        lease_until_ms=message.until_ms,
        attempt=message.attempt,
        priority=message.priority,
        key=message.key,
        order_key=message.order_key,
        body=body,
        headers=headers,
    )


_ONE = "/v1/timelines/{timeline}"
ENDPOINTS = (
    Endpoint(
        "POST",
        f"{_ONE}/receive",
        receive_messages,
        "Receive messages, each with a lease",
        Received,
        body=Receive,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/extend",
        extend_leases,
        "Extend leases",
        LeaseOutcomes,
        body=LeasesExtended,
        body_bytes_max=LEASES_BODY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/done",
        finish_messages,
        "Finish messages that were handled",
        LeaseOutcomes,
        body=LeasesDone,
        body_bytes_max=LEASES_BODY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/retry",
        retry_messages,
        "Return messages to be retried later",
        LeaseOutcomes,
        body=LeasesRetried,
        body_bytes_max=LEASES_BODY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/dead",
        reject_messages,
        "Turn messages into dead letters",
        LeaseOutcomes,
        body=LeasesRejected,
        body_bytes_max=LEASES_BODY_BYTES_MAX,
    ),
)
