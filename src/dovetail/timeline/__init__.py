"""Timelines: messages due at a time, leased to one consumer.

    from dovetail.timeline import Draft, Message, Retry, TimelineConfig, connect

A producer schedules a message; at its due time a broker pushes it to one consumer, which has a
lease on it for as long as it says. Done: the consumer deletes it. Failed: it releases it, and the
message comes again later. Dead: the lease ends, and the message comes to another consumer.

All ownership is a lease with a version, and the store decides: it refuses an old version.
Everything else in this room (which consumer, when, from which broker) is about speed and evenness,
and may be wrong for a moment without harm.

A message's way in: a client's call (`client/`) → `dispatch.py` → `requests.py` → the store. Its way
out: `engine/window.py` assigns buckets to consumers → `engine/loader.py` plans leases →
`running.py` takes them from the store and pushes each message at its time.

    client/        what users call: `connect`, timelines, consumers, and a fake for tests
    engine/        what is decided, without doing it: assignments, leases, schedules, health
    stores/        where messages lie: SQLite, PostgreSQL or memory

    message.py     what travels: messages, handles, leases, outcomes
    config.py      the settings of one timeline
    frames.py      the calls of timelines: messages, keys and limits
    dispatch.py    the one table of requests: name, permission, handler
    requests.py    what each request of a producer or consumer does
    operating.py   what each request of an operator does
    receiver.py    messages for clients without a session: each call stands alone
    forwarding.py  dead letters that go to a topic or another timeline
    upkeep.py      what is done for a timeline every so often: counts, schedules, trimming
    session.py     producers and consumers of a timeline, as a broker knows them
    context.py     what all running timelines of a broker share
    running.py     one timeline that a broker serves: timers, store, waiting requests
    service.py     all timelines of a broker, and their upkeep
    catalog.py     which timelines there are, in the coordination service
    watch.py       what other brokers do to the same store: heard of, or seen
    roster.py      which brokers there are, and which consumers each of them has
    clocks.py      our clock against those of storage, coordination and the other brokers
    metrics.py     what is counted
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
