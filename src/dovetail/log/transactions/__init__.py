"""Transactions (K8): records in many partitions and positions of groups, visible together or never.

A transactional id belongs to a partition of an internal topic. The owner of that partition
coordinates it, and the partition is its journal, as with groups (`log/coordinators.py`).

The steps of a transaction:

    1. A producer asks for its id and epoch. An older producer of the same name is fenced: its open
       transaction is aborted under a higher epoch.
    2. It names the partitions it writes to (or, in KIP-890's protocol, its first batch does). The
       journal has them before anything is written there.
    3. The owner of a partition asks the coordinator before it accepts the first batch of a
       transaction; a group's coordinator does the same for positions, which wait as pending.
    4. One record of the journal decides the end: prepared to commit, or to abort.
    5. A marker goes to every partition, again and again until each has stored it; then the journal
       records the completion. A new coordinator sends all markers of prepared transactions again.

Crashes: before 4 nothing is decided, and a new coordinator aborts when the timeout is over; from 4
on every successor proceeds to the same end. Markers carry the number of the transaction, the
producer's epoch and the coordinator's term, and a partition refuses late ones
(`log/producers.py`).

    types.py         states, errors, answers
    transaction.py   one transactional id, with its table of states; pure
    journal.py       the stored form
    coordinator.py   the doing part: stores before it answers, times out, completes every end
    registry.py      which broker coordinates an id, and the coordinators here
    markers.py       markers to the owners of partitions, and what an owner does with one
    verification.py  asks the coordinator before an owner accepts a transaction's first batch
    calls.py         private calls between brokers
    brokers.py       makes these calls to the other brokers
"""
