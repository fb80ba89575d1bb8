"""The wire: frames, connections and limits, on both sides. It knows no topic.

A frame is four bytes of length and that many bytes. The server passes each frame to a `Dispatch`,
which knows its meaning and answers at once, later, or not at all; this room sends the answers in
the order of the requests.

    server.py       TLS, the number of connections; strangers, slow and idle clients
    connection.py   one client: bytes to frames, answers in order, limits checked before memory
    replies.py      the ways to answer a request: at once, in turn, or pipelined
    budget.py       limits the bytes of requests and answers over all connections of the node
    peer.py         the client side: calls one node in frames
    login.py        a client's TLS and login
    calls.py        the codec of private calls: header, version, body, errors, keys, limits
    service.py      the server side of private calls
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
