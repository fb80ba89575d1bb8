"""The log room: topics of partitions, each a chain of ledgers.

    topic.py        names, settings and life of a topic
    topic_settings.py  every setting by Kafka's name: type, bounds, what it does
    admission.py    what a topic's settings say of a batch from outside; pure
    catalog.py      topics, owners and ids in the coordination service
    owners.py       who owns which partition, by owner and topic; pure
    claims.py       which broker takes which partition; pure
    owned.py        the partitions that this broker owns: opened, served, given away
    ownership.py    claim, takeover
    chain_keeper.py the owner's copy of the chain, changed by compare-and-set
    examining.py    looks at batches of clients before they are appended, in order
    partition.py    appends in order, confirmation, the border between two ledgers
    context.py      what the partitions of a node share
    open_ledger.py  a ledger that is being written, and what is on its way to it
    reading.py      reads by offset and by time
    checkpoint.py   what a ledger says about itself: sparse index, producers
    producers.py    idempotent producers and open transactions, a pure table
    tail.py         the newest batches in memory
    topic_work.py   creates and deletes topics, whoever dies meanwhile
    peers.py        the other brokers, as the log needs to know them
    broker_peers.py private calls between brokers: connections, answers
    service.py      all of it on one broker, with upkeep
    coordinators.py whoever owns a partition of an internal topic coordinates its keys
    compaction/     the last record of each key stays
    ends/           what all partitions of the cluster hold, for whoever watches them
    groups/         groups of all kinds: members, positions, one journal
    share/          share groups: records that are handed out one by one
    transactions/   transactions over partitions and groups' positions

An entry of a ledger is one record batch (`dovetail.record_batch`), as its producer sent it, or a
checkpoint. Offsets are those in the batches; the sparse index that the ledger carries in its
checkpoints says where an offset lies. So a ledger explains itself, and the coordination service
holds a few numbers for each ledger and nothing for each record.
"""
