"""Groups (K7, K9, L13): members with sessions; partitions are reassigned when a member goes.

A group belongs to a partition of an internal topic. The owner of that partition coordinates the
group, and the partition is its journal: the coordinator stores what the group promises there before
it answers, and a replaced coordinator is refused like every former owner.

    types.py              requests, answers, effects, limits
    group.py              the classic protocol, with its table of states; pure
    joining.py            which members may join a group; pure
    phases.py             how one generation follows another; pure
    member.py             one member, and how members agree on a protocol; pure
    consumer_group.py     the new protocol (KIP-848), with its promises; pure
    mixed_group.py        its classic members, so that a live group can migrate; pure
    consumer_member.py    one member of it
    consumer_types.py     its requests, answers and stored forms
    subscriptions.py      the topics to which its members are subscribed; pure
    consumer_side.py      its part of the coordinator
    assignors.py          assign partitions to members; pure
    topic_patterns.py     the topics that a pattern matches; pure
    offsets.py            the committed positions of a group; pure
    forgetting.py         deletes and expires positions and groups
    endings.py            applies or drops pending positions at the end of a transaction
    pending.py            positions that wait for the end of a transaction; pure
    journal.py            the stored form of groups and positions
    entries.py            a group with its positions; replays its journal
    writer.py             appends to the journal, in order
    partition_journal.py  the journal in a partition of an internal topic
    alarms.py             the next deadline of each group
    coordinator.py        the doing part: timers, waiting members, storing before answering
    registry.py           which broker coordinates a group, and the coordinators here
"""
