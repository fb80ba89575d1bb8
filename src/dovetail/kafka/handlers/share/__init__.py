"""Share groups (KIP-932): their members, their records, their administration.

groups.py    ShareGroupHeartbeat, ShareGroupDescribe
sessions.py  which partitions a member fetches from, so that it names them once; pure
fetch.py     ShareFetch: acquires records; and acknowledgements that come with it
acknowledge.py  ShareAcknowledge, and what both do with acknowledgements
offsets.py   DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets
"""
