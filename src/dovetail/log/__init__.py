"""The log: topics of partitions, each partition a chain of ledgers.

    topic.py        names, settings and states of a topic
    topic_settings.py  every topic setting by Kafka's name: type, bounds, effect
    admission.py    applies a topic's settings to a client's batch; pure
    catalog.py      topics, owners and ids in the coordination service
    owners.py       which broker owns which partition, by owner and topic; pure
    claims.py       decides which broker takes which partition; pure
    owned.py        the partitions of this broker: opens, serves and gives them away
    ownership.py    claim and takeover
    chain_keeper.py the owner's copy of the chain, changed by compare-and-set
    examining.py    checks clients' batches before they are appended, in order
    partition.py    appends in order, confirms, rolls from one ledger to the next
    context.py      what the partitions of a node share
    open_ledger.py  a ledger that is being written, and its entries in flight
    reading.py      reads by offset and by time
    checkpoint.py   what a ledger says about itself: sparse index, producers
    producers.py    idempotent producers and open transactions; a pure table
    tail.py         the newest batches, in memory
    topic_work.py   creates and deletes topics, in steps that survive any crash
    peers.py        the live brokers and leases, as the log needs them
    broker_peers.py private calls between brokers
    service.py      the whole log of one broker, with its upkeep
    coordinators.py starts and ends the coordinators on an internal topic's partitions
    compaction/     keeps the last record of each key
    ends/           first and last offsets of every partition in the cluster
    groups/         groups of all kinds: members, positions, one journal
    share/          share groups: members acquire records one by one
    transactions/   transactions over partitions and groups' positions

An entry of a ledger is one record batch (`dovetail.record_batch`), as its producer sent it, or a
checkpoint. Offsets are those in the batches; the sparse index in the ledger's checkpoints says
where an offset lies. So a ledger describes itself, and the coordination service stores a few
numbers for each ledger and nothing for each record.
"""
