"""Share groups (KIP-932): their members, their records, their administration.

groups.py    ShareGroupHeartbeat, ShareGroupDescribe
sessions.py  the partitions from which a member fetches, so that it names them once; pure
fetch.py     ShareFetch: acquires records; takes the acknowledgements that come with it
acknowledge.py  ShareAcknowledge, and how both apply acknowledgements
offsets.py   DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets
"""
