"""Consumer groups (K7, L13): members under a session, partitions assigned anew when one goes.

types.py               the words: requests, answers, effects
group.py               the protocol, pure, with its table of states
joining.py, phases.py  its parts; member.py: one member
offsets.py             positions of a group
journal.py, entries.py the durable form
writer.py              appends to the journal, in order
partition_journal.py   the journal on an internal topic
coordinator.py         the doing part: timers, waiting members, storing before answering
"""
