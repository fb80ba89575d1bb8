"""Transactions (K8): records in many partitions and groups' positions, seen together or not at all.

A transactional id belongs to a partition of an internal topic. The owner of that partition
coordinates it, and the partition is its journal, as it is with groups (`log/coordinators.py`).

The way of a transaction:

    1. A producer asks for its id and epoch. An older one of the same name is fenced: its open
       transaction is aborted under a higher epoch.
    2. It names the partitions it writes to (or, in KIP-890's protocol, its first batch does). The
       journal has them before anybody writes there.
    3. The owner of a partition asks the coordinator before it takes the first batch of a
       transaction; a group's coordinator does so for positions, which wait as pending.
    4. The end is decided by one record of the journal: prepared to commit, or to abort.
    5. A marker goes to every partition, and again until each has stored it; then the journal says
       that it is complete. A new coordinator sends all markers of what is prepared again.

Whoever dies: before 4 nothing is decided, and a new coordinator aborts when the time is over; from
4 on everybody who takes over goes on to the same end. Markers carry the number of the transaction,
the producer's epoch and the coordinator's term, and the partition refuses what is late
(`log/producers.py`).

    types.py         the words: states, errors, answers
    transaction.py   one transactional id, with its table of states; pure
    journal.py       the durable form
    coordinator.py   the doing part: storing before answering, time-outs, ends until they are done
    registry.py      which node coordinates an id, and the coordinators that are here
    markers.py       markers to the owners of partitions, and what an owner does with one
    verification.py  what an owner asks before it takes the first batch of a transaction
    calls.py         what brokers ask each other
    brokers.py       the other brokers, over private calls
"""
