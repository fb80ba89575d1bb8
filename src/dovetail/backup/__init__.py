"""Backup and restore: everything that a node holds, as of one moment, in one tar file (R9).

*What is promised.* A backup holds everything that was acknowledged before it began. What a restored
node serves is a state that the node was in, partition by partition a prefix of what was written.
The node goes on serving meanwhile; nothing waits but the deletion of ledgers, for milliseconds.

*One moment, in this order* (`taking.py`). All three are snapshots that cost milliseconds; copying
begins when the last of them is taken, and is not hurried.

1. *Timelines:* a read transaction on each SQLite file.
2. *Coordination:* all keys at one revision: topics, chains, users, access rules.
3. *Ledgers:* a cut. The thread that writes segments notes how long each of them is, between two
   groups of records, and holds their files open.

Why coordination before ledgers: a chain names only ledgers that were stored before, so the later
cut has them; the other way round it could name a ledger that the cut lacks. The end of a ledger
that is still open is found at the next start, as after a crash. A ledger that was opened between
the two is named by no chain, and is swept. But a ledger that a chain of the snapshot names must not
go before the cut: so deletions wait from before the one until after the other.

All partitions of a node share one sequence of segments, so the cut is one moment for all of them:
no group is ahead of its topic, and no transaction is half there that was whole before.

Why timelines before ledgers: a due record goes from its timeline to the log. If it goes in between,
it is in both, and may be appended twice; the other way round it could be in neither.

*What a restored node must not do:* give a number again that was given after the backup. Clients
remember numbers. So `restoring.py` leaves a gap (`renumbering.py`): terms of partitions (a client
ignores a leader of an older term), ids of producers (a batch of a new producer would pass for one
that came before), of ledgers and of the messages of timelines.

*A backup is whole or it is none.* Its last member, `backup.json`, lists all others with their
checksums. A file without it, or with other bytes, is refused by name. While it is written it has
another name.

*Left to others:* clusters, and timelines in PostgreSQL, which has tools of its own;
docs/operations.md says what to do. Positions and numbers that clients keep outside, in a database
or a checkpoint of Spark, are newer than what is restored.

    archive.py      the tar file: members, the list of them, reading and checking it
    taking.py       on a node: the snapshots, and the file as a stream
    restoring.py    the file into an empty data folder
    renumbering.py  the gap in numbers that a restored node begins behind             pure
"""
