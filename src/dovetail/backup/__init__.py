"""Backup and restore: everything that a node holds, as of one moment, in one tar file (R9).

*Promise.* A backup holds everything that was acknowledged before it began. A restored node serves a
state that the node was in, partition by partition a prefix of what was written. The node continues
to serve meanwhile; only the deletion of ledgers waits, for milliseconds.

*One moment, in this order* (`taking.py`). All three are snapshots that cost milliseconds; copying
begins when the last of them is taken, and is not hurried.

1. *Timelines:* a read transaction on each SQLite file.
2. *Coordination:* all keys at one revision: topics, chains, users, access rules.
3. *Ledgers:* a cut. The thread that writes segments notes how long each of them is, between two
   groups of records, and holds their files open.

Why coordination before ledgers: a chain names only ledgers that were stored before, so the later
cut has them; the other way round it could name a ledger that the cut lacks. The next start finds
the end of a ledger that is still open, as after a crash. A ledger that was opened between the two
is named by no chain, and is swept. But a ledger that a chain of the snapshot names must not go
before the cut: so deletions wait from before the one until after the other.

All partitions of a node share one sequence of segments, so the cut is one moment for all of them:
no group is ahead of its topic, and no transaction is cut in half.

Why timelines before ledgers: a due record goes from its timeline to the log. If it goes in between,
it is in both, and may be appended twice; the other way round it could be in neither.

*A restored node must not* issue a number again that was issued after the backup, because clients
remember numbers. So `restoring.py` leaves a gap (`renumbering.py`): terms of partitions (a client
ignores a leader of an older term), ids of producers (a batch of a new producer would pass for an
earlier one), of ledgers and of the messages of timelines.

*A backup is whole or invalid.* Its last member, `backup.json`, lists all others with their
checksums. A file without it, or with other bytes, is refused by name. While it is written it has
another name.

*Left to others:* clusters, and timelines in PostgreSQL, which has its own tools;
docs/operations.md says what to do. Positions and numbers that clients keep elsewhere, in a database
or a checkpoint of Spark, are newer than what is restored.

    archive.py      the tar file: its members and their list; reads and checks it
    taking.py       on a node: the snapshots, and the file as a stream
    restoring.py    the file into an empty data folder
    renumbering.py  the gap in numbers behind which a restored node begins             pure
"""
