"""Benchmarks: each figure beside its peer or the machine's own limit, measured in the same run.

log.py       the log of one node: `make bench`
cluster.py   the cluster: `make bench`
program.py   what every such program does: options, cases, table, JSON
table.py     a measured value with its rule, as a table and as JSON
run.py       what a case is given: rounds, folders, progress
node.py      our node in a process of its own
local_cluster.py   a cluster of processes on this machine
client.py    produce and consume through confluent-kafka
disk.py      what the disk can do without us
peers/       other servers, driven by their own Python clients
cases/       one module for each question
"""
