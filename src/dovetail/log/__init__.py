"""The log room: topics of partitions, each a chain of ledgers.

    topic.py             names, settings and life of a topic
    catalog.py           topics and partitions in the coordination service; ids
    chain.py             a partition's ledgers: pure changes of its record, retention
    ownership.py         claim, compare-and-set of the chain, takeover
    partition.py         appends in order, confirmation, the border between two ledgers
    open_ledger.py       a ledger that is being written, and what is on its way to it
    reading.py           reads by offset and by time
    checkpoint.py        what a ledger tells about itself: sparse index, producers
    producers.py         idempotent producers, a pure table
    tail.py              the newest batches in memory
    service.py           all of it on one node, with upkeep
    groups/              consumer groups

An entry of a ledger is one record batch (`dovetail.record_batch`), as its producer sent it, or a
checkpoint. Offsets are
those in the batches; where an offset lies is found by the sparse index that the ledger carries in
its checkpoints. So a ledger explains itself, and the coordination service holds a few numbers for
each ledger and nothing for each record.
"""
