"""Benchmarks: each figure beside its peer or the machine's own limit, measured in the same run.

log.py            the log of one node
cluster.py        the cluster
beside_kafka.py   one node and a cluster beside a real Apache Kafka
timeline.py       timelines
outbox.py         the outbox
stream.py         the shared stream
pipeline.py       Spark tables and teams
assignments.py    the assignment of buckets at scale
clients.py        many clients, idle and at work
size.py           several brokers of a machine, a crowded machine, many tiny entries
scale.py          what grows with partitions, topics, groups, clients ...
steady.py         hours of the same load, and what a node holds meanwhile
crowd.py          a hundred brokers and a hundred thousand partitions, simulated
program.py        what every such program does: options, cases, table, JSON
table.py          a measured value with its rule, as a table and as JSON
run.py            what a case gets: rounds, folders, progress
node.py           our node in a process of its own
local_cluster.py  a cluster of processes on this machine
client.py         produce and consume through confluent-kafka
disk.py           what the disk can do without us
outbox_tables.py  outbox tables, filled and emptied
peers/            other servers, driven by their own Python clients
cases/            one module for each question
"""
