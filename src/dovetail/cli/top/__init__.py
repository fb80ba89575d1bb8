"""`dovetail top`: what a cluster does right now, in a terminal.

Three doors are knocked at, each on its own thread, so that one that is shut hides nothing of the
others: the Kafka port (topics, groups), the timeline requests behind the same port, and HTTP
(nodes, streams, pipelines). What a door answered is a `Look`; `picture` compares it with the last
good one and makes tables of it, without I/O. A door that does not answer leaves its last tables on
the screen with the time since when and the reason, and is tried again at every look: a node that
restarts comes back by itself.
"""
