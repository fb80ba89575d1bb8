"""The Python client of timelines: asyncio first, with a plain synchronous face.

    async with dovetail.connect("127.0.0.1:9092") as d:
        await d.timeline("reminders").schedule(b"call Ada", delay="2h", key="ada")

        @d.consumer("reminders", lease="30s", concurrency=32)
        async def handle(message):
            ...

        await d.run()

What the client promises: a handler runs only while its message's lease is this consumer's, as far
as this process can know; what it finished is deleted, what it failed comes again later, and what
it never began is given back, uncounted.

    client.py       `connect`: a client of one node or cluster
    blocking.py     `connect_blocking`: the same without asyncio
    timeline.py     a timeline: schedule, cancel, move, look, dead letters, recurring schedules
    draft.py        a message to be scheduled, as people write it
    consumer.py     handlers: leases held while they run, done, failed, given back
    leases.py       the leases of a consumer: kept, fit to begin with, lost before they end
    leading.py      leadership by a lease: of several programs one leads, under a term
    credit.py       how many messages may come to a consumer
    handler.py      the call of a handler, in the loop or in a thread
    options.py      how a consumer works
    finished.py     what is done or given back, and how it is reported to the broker
    message.py      messages as handlers see them
    retry.py        when a failed message comes again, and why it failed
    moments.py      times and durations as people write them
    link.py         one node: requests and answers over a connection, or in this process
    node_clock.py   the node's time, as a client knows it
    spans.py        traces of scheduling and handling
    fake.py         a whole node in memory, whose time goes on when a test says so
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
