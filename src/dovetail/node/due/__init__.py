"""Due records: on a topic with `dovetail.due=true` a record says in a header when it is due (K11).

    dovetail-due      when it appears in the topic: milliseconds since the epoch, as text
    dovetail-delay    after how long: milliseconds, or a duration such as 90s or 2h
    dovetail-key      while a record with this key waits, a new one takes its place

A topic has a timeline behind it (`due.TOPIC`), where its records wait, are listed, cancelled and
moved. The owner of a partition stores a record there before it acknowledges it, and appends it to
the partition when it is due.

    records.py    what a batch holds that is due later, and what is appended when it is   pure
    topics.py     the topics of a broker: what comes is stored, what is due is appended
    pump.py       one partition: from the timeline to the log, once
"""

from dovetail.node.due.topics import DueTopics

__all__ = ["DueTopics"]
