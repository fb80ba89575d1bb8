"""Timelines: messages due at a time, leased to one consumer.

    from dovetail.timeline import Draft, Message, Retry, TimelineConfig, connect

A producer schedules a message. At its due time a broker pushes it to one consumer, which holds a
lease on it for the time that the consumer sets. The consumer deletes a message that it has handled,
and releases one that failed, which then returns later. If the consumer dies, the lease ends and the
message goes to another one.

All ownership is a lease with a version, and the store decides: it refuses an old version.
Everything else in this room (which consumer, when, from which broker) concerns speed and evenness,
and may be wrong for a moment without harm.

A message comes in by a client's call (`client/`) → `dispatch.py` → `requests.py` → the store. It
goes out thus: `engine/window.py` assigns buckets to consumers → `engine/loader.py` plans leases →
`running.py` takes them from the store and pushes each message at its time.

    client/        the Python client: `connect`, timelines, consumers, and a fake for tests
    engine/        the decisions: assignments, leases, schedules, health; pure
    stores/        keep the messages: SQLite, PostgreSQL or memory

    message.py     messages, handles, leases, outcomes: the types that travel
    config.py      the settings of one timeline
    frames.py      the calls of timelines: messages, keys and limits
    dispatch.py    the one table of requests: name, permission, handler
    requests.py    answers the requests of producers and consumers
    operating.py   answers the requests of operators
    receiver.py    messages for clients without a session: each call stands alone
    forwarding.py  moves dead letters to a topic or another timeline
    upkeep.py      periodic work for a timeline: counts, schedules, trimming
    session.py     the producers and consumers of a timeline, as a broker knows them
    context.py     what all running timelines of a broker share
    running.py     one timeline that a broker serves: timers, store, waiting requests
    service.py     all timelines of a broker, and their upkeep
    catalog.py     which timelines exist, in the coordination service
    watch.py       notices what other brokers change in the same store
    roster.py      which brokers exist, and which consumers each of them has
    clocks.py      compares our clock with those of storage, coordination and the other brokers
    metrics.py     the metrics of timelines
    spans.py       the trace of a delivery
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.timeline.client import (
        Dovetail,
        Draft,
        Message,
        Reject,
        Retry,
        Scheduled,
        Timeline,
        Where,
        connect,
        connect_blocking,
    )
    from dovetail.timeline.config import TimelineConfig

__all__ = [
    "Dovetail",
    "Draft",
    "Message",
    "Reject",
    "Retry",
    "Scheduled",
    "Timeline",
    "TimelineConfig",
    "Where",
    "connect",
    "connect_blocking",
]


def __getattr__(name: str) -> object:
    """Loads the client when it is used: a broker does without it."""
    if name == "TimelineConfig":
        from dovetail.timeline.config import TimelineConfig

        return TimelineConfig
    if name in __all__:
        from dovetail.timeline import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
