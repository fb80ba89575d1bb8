"""One node in one process: puts the rooms together and reports health and metrics.

This room makes no decision that another room can make. A node has up to three roles: a broker
serves topics and timelines, a storage node keeps ledgers, an overseer answers questions about the
cluster. They share one listener, one membership with its lease, and one prober of peers.

    serving.py       runs a node as a process: event loop, signals, exit code
    node.py          starts and stops every room, in order
    coordinators.py  opens the coordination that the settings name
    listener.py      passes each incoming frame to the service that its api key names
    disk.py          opens the storage node's disk, scrubs it, and backs it up
    broker.py        the broker role: the log, its coordinators, and their upkeep
    collecting.py    looks for garbage rarely while a node starts
    others.py        private calls to the other brokers
    timelines.py     makes the timelines' stores and service from the settings
    letters.py       appends dead letters of timelines to a topic
    security.py      TLS, login and permissions, from the settings
    overseer.py      reports on the cluster
    due/             due records: a topic's records wait in a timeline until they are due
    history/         the last hour in figures, in memory, for the console
    insight.py       what a node knows of its cluster, for the console
    sentry.py        ends the lease of a node whose process has died
    metrics.py       the metrics of a node
    tallies.py       counters and timers for the hot path
    measured.py      measures every call to the coordination service
"""

from dovetail.node.node import Endpoints, Node
from dovetail.node.serving import serve

__all__ = ["Endpoints", "Node", "serve"]
