"""What every partition of the cluster holds (first offset, end, bytes), as a feed of changes.

Clients use Kafka's ListOffsets, partition by partition. Watching ten thousand partitions that way
every second would use up the processor, so brokers ask each other for *what has changed*: an owner
numbers the changes of its partitions and answers with those after the number that the caller
names. A poll costs what has changed since the last one, plus a comparison for each partition here.

A number is valid for one life of an owner. A caller that names another life gets everything.

    held.py    the partitions of this broker, with numbered changes
    calls.py   the private calls of the feed
    seen.py    all partitions of the cluster, as last reported by their owners
"""
