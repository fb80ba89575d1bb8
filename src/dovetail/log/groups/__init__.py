"""Groups (K7, K9, L13): members under a session, partitions assigned anew when one goes.

A group belongs to a partition of an internal topic. The owner of that partition coordinates the
group, and the partition is its journal: what the group promises is stored there before anybody is
answered, and a coordinator that was replaced is refused as every old owner is.

    types.py              the words: requests, answers, effects
    group.py              the protocol, with its table of states; pure
    joining.py            who may join a group, and as whom; pure
    phases.py             how one generation follows another; pure
    member.py             one member, and how members choose a protocol; pure
    consumer_group.py     the new protocol (KIP-848), with its promises; pure
    mixed_group.py        members of the classic protocol in it, so that a live group can move; pure
    consumer_member.py    one member of it
    consumer_types.py     its words
    subscriptions.py      the topics that its members are subscribed to; pure
    consumer_side.py      its part of the coordinator
    assignors.py          who reads which partition; pure
    topic_patterns.py     which topics a pattern means; pure
    offsets.py            the positions of a group; pure
    forgetting.py         positions and groups that go, or are too old
    endings.py            the end of a transaction: what waits becomes real, or is forgotten
    pending.py            positions that wait for the end of a transaction; pure
    journal.py            the durable form of groups and positions
    entries.py            a group with its positions, and its journal replayed
    writer.py             appends to the journal, in order
    partition_journal.py  the journal in a partition of an internal topic
    alarms.py             when a group has something to do
    coordinator.py        the doing part: timers, waiting members, storing before answering
    registry.py           which node coordinates a group, and the coordinators that are here
"""
