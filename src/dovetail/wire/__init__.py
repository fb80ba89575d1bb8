"""The wire: frames, connections and limits, on both sides. It knows no topic.

A frame is four bytes of length and that many bytes. What a frame means is the business of the
`Dispatch` that the server is given; it answers at once, later, or not at all, and this room sees
to it that answers leave in the order of the requests.

    server.py       TLS, the number of connections, strangers, slow and idle clients
    connection.py   one client: bytes to frames, answers in order, limits checked before memory
    replies.py      the ways in which a request is answered
    budget.py       bytes of requests and answers that the node holds, over all connections
    peer.py         the other side: a client that calls one node in frames
    login.py        a client's TLS and login
    calls.py        the codec of private calls: header, version, body, errors, keys, limits
    probe.py        latency and clock of other nodes, measured once per peer
"""

from dovetail.wire.budget import ByteBudget
from dovetail.wire.connection import (
    Connection,
    Dispatch,
    Limits,
    Observer,
)
from dovetail.wire.replies import OrderedReply, PipelinedReply, Reply
from dovetail.wire.server import WireServer

__all__ = [
    "ByteBudget",
    "Connection",
    "Dispatch",
    "Limits",
    "Observer",
    "OrderedReply",
    "PipelinedReply",
    "Reply",
    "WireServer",
]
