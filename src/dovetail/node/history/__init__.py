"""The last hour of a node, in memory, for the console's charts.

Promise: an hour of a fixed set of figures, a sample every five seconds; and of the lag of groups
that are coordinated here, a sample every fifteen. Sampling reads what is in memory already, in
pieces that are short for the event loop, and all of it has a limit. A restart empties it. Each node
keeps its own; nobody adds them up.

    figures.py     figures of the node over an hour                      pure
    lags.py        lag of groups over an hour, group by group            pure
    reading.py     where the figures come from
    sampler.py     samples, and measures how long the event loop is busy

Not here: alarms and anything older; that is for Prometheus (`docs/metrics.md`).
"""

from dovetail.node.history.sampler import History

__all__ = ["History"]
