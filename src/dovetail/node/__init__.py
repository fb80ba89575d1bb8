"""One node in one process: the rooms put together, with its health and its metrics.

Nothing is decided here that another room could decide. A node has up to three roles: a broker
serves topics and timelines, a storage node keeps ledgers, an overseer answers questions about the
cluster. All of them share one listener, one membership with its lease, and one prober.

    serving.py     running a node as a process: the loop, the signals, the exit code
    node.py        start and stop of every room, in order
    listener.py    every frame that comes in, to the service that its key names
    disk.py        the storage node's disk: opened, and read through for damage
    broker.py      the broker's part: the log, its groups, and their upkeep
    others.py      the other brokers, as this one asks them
    timelines.py   the timelines' part: stores and service made from settings
    letters.py     dead letters of timelines on their way to a topic
    security.py    TLS, logins and permissions, as the settings say
    overseer.py    the report of the cluster
    due/           due records: topics whose records may be due later
    insight.py     what a node sees of its cluster from inside, for the console
    sentry.py      ends the lease of a node whose process is gone
    metrics.py     what a node counts
    tallies.py     counts and times that cost an addition
    measured.py    a coordination service whose calls are counted
"""

from dovetail.node.node import Endpoints, Node
from dovetail.node.serving import serve

__all__ = ["Endpoints", "Node", "serve"]
