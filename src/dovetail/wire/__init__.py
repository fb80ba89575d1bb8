"""The one door: frames, connections, limits. Knows no topic and no request.

    budget.py       bytes of requests that the node holds, over all connections
    connection.py   one client: bytes to frames, answers in order, limits checked before memory
    server.py       listening, the number of connections, slow and idle clients

A frame is four bytes of length and that many bytes. What a frame means is the business of the
`Dispatch` that the server is given; it answers at once, later, or not at all, and this room sees
to it that answers leave in the order of the requests.
"""

from dovetail.wire.budget import ByteBudget
from dovetail.wire.connection import (
    Connection,
    Dispatch,
    Limits,
    Observer,
    PipelinedReply,
    Reply,
)
from dovetail.wire.server import WireServer

__all__ = [
    "ByteBudget",
    "Connection",
    "Dispatch",
    "Limits",
    "Observer",
    "PipelinedReply",
    "Reply",
    "WireServer",
]
