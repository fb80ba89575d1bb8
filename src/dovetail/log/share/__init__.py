"""Share groups (K10, KIP-932): many members read a partition, each record goes to one at a time.

It is a timeline's idea in Kafka's words: an acquired record is leased, its delivery count is the
attempt; accept means done, release again, reject dead, renew extend.

Three parts, each with whoever owns what it decides about:

    the coordinator of the group    its members, and the stored state of each partition
    the owner of a partition        which member has acquired which record, for each group
    any broker                      sessions of the members that fetch from it

The owner claims the stored state when the first member fetches. From then on it stores every
acknowledgement in the coordinator's journal before it answers. A new owner claims under a higher
term, so that the old one can no longer store anything: acknowledgements stay, locks are forgotten,
and records without an acknowledgement are delivered again.

    types.py             places, states, limits, and the stored state
    share_partition.py   which member has which record, with its table of states; pure
    share_group.py       the members of a group and what each may read; pure
    coordinator_side.py  claims and writes, in the journal of the group's coordinator
    keeper.py            one share-partition at its owner: claims, stores, wakes waiting fetches
    dead_letters.py      sends records that were given up to a topic
    registry.py          the share-partitions here, and which brokers keep their state
    group_settings.py    the settings of single groups, in the coordination service
    calls.py             private calls between brokers
    brokers.py           makes these calls to the other brokers
"""
