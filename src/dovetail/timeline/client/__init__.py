"""The Python client of timelines: asyncio first, with a synchronous wrapper.

    async with dovetail.connect("127.0.0.1:9092") as d:
        await d.timeline("reminders").schedule(b"call Ada", delay="2h", key="ada")

        @d.consumer("reminders", lease="30s", concurrency=32)
        async def handle(message):
            ...

        await d.run()

Promise: a handler runs only while this consumer holds the lease of its message, as far as this
process can know; a finished message is deleted, a failed one returns later, and one that was never
started is given back, uncounted.

    client.py       `connect`: a client of one node or cluster
    blocking.py     `connect_blocking`: the same without asyncio
    timeline.py     a timeline: schedule, cancel, move, inspect, dead letters, schedules
    draft.py        a message to be scheduled, as people write it
    consumer.py     runs handlers under leases; reports done, failed and unstarted messages
    leases.py       the leases of a consumer: extended in time, lost before they end
    leading.py      leadership by a lease: one of several programs leads, under a term
    credit.py       how many messages a consumer can take
    handler.py      calls a handler, on the loop or in a thread
    options.py      the options of a consumer
    finished.py     reports finished and returned messages to the broker
    message.py      messages as handlers see them
    retry.py        when a failed message returns, and why it failed
    moments.py      times and durations as people write them
    link.py         one node: requests and answers over a connection, or in this process
    node_clock.py   the node's time, as a client knows it
    spans.py        traces of scheduling and handling
    fake.py         a whole node in memory, whose time advances when a test says so
"""

from dovetail.timeline.client.blocking import connect_blocking
from dovetail.timeline.client.client import Dovetail, connect
from dovetail.timeline.client.draft import Draft
from dovetail.timeline.client.leading import Lead
from dovetail.timeline.client.message import Message, Scheduled
from dovetail.timeline.client.retry import Reject, Retry
from dovetail.timeline.client.timeline import Timeline
from dovetail.timeline.engine.where import Where

__all__ = [
    "Dovetail",
    "Draft",
    "Lead",
    "Message",
    "Reject",
    "Retry",
    "Scheduled",
    "Timeline",
    "Where",
    "connect",
    "connect_blocking",
]
