"""Share groups (K10, KIP-932): many members to a partition, each record to one of them at a time.

It is a timeline's idea in Kafka's words: an acquired record is leased, its delivery count is the
attempt, accept is done, release is again, reject is dead, renew is extend.

Three parts, each where what it decides about is owned:

    the coordinator of the group    its members, and what is stored of each partition
    the owner of a partition        who has which record of it, for each group
    any broker                      sessions of the members that fetch from it

The owner claims what is stored when the first member fetches, and from then on stores every
acknowledgement in the journal of the coordinator before it answers. A new owner claims under a
higher term, so that the old one can store nothing any more: what was acknowledged stays so, locks
are forgotten, and what was not acknowledged is delivered again.

    types.py             the words, and what is stored
    share_partition.py   who has which record, with its table of states; pure
    share_group.py       the members of a group and what each may read; pure
    coordinator_side.py  claims and writes, in the journal of the group's coordinator
    keeper.py            one share-partition at its owner: claims, stores, wakes who waits
    dead_letters.py      records that were given up, to a topic
    registry.py          the share-partitions that are here, and who keeps their state
    group_settings.py    the settings of single groups, in the coordination service
    calls.py             what brokers ask each other
    brokers.py           the other brokers, over private calls
"""
