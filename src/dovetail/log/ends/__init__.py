"""What all partitions of the cluster hold (first offset, end, bytes), for whoever watches them.

Clients ask by Kafka's ListOffsets, partition by partition. Watching ten thousand partitions that
way every second would use up the processor, so brokers ask each other for *what has changed*: an
owner numbers the changes of its partitions and answers with those after the number that the caller
names. A poll costs what has changed since the last one, and a comparison for each partition here.

A number is valid for one life of an owner. A caller that names another life gets everything.

    held.py    the partitions of this broker, with the numbers of their changes
    calls.py   what a broker is asked, as private calls
    seen.py    all partitions of the cluster, as their owners told last
"""
