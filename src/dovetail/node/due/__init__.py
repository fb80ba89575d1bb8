"""Due records: on a topic with `dovetail.due=true`, a header says when a record is due (K11).

    dovetail-due      when it appears in the topic: milliseconds since the epoch, as text
    dovetail-delay    after how long: milliseconds, or a duration such as 90s or 2h
    dovetail-key      while a record with this key waits, a new one replaces it

Such a topic has a timeline (`due.TOPIC`), in which its records wait and can be listed, cancelled
and rescheduled. The owner of a partition stores a due record there before it acknowledges it, and
appends it to the partition when it is due.

    records.py    splits a batch into due and other records, and builds what is appended; pure
    topics.py     the due topics of a broker: stores incoming records, runs the pumps
    pump.py       one partition: moves due records from the timeline to the log, once each
"""

from dovetail.node.due.topics import DueTopics

__all__ = ["DueTopics"]
