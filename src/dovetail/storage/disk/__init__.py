"""One storage node's disk: segment files, their index, and recovery at start.

All ledgers of a node share one sequence of segment files. That is what makes one sync enough for
everything that waits, however many partitions are written: 1,000 files would need 1,000 syncs. The
price is that space comes back only when a segment has no live entry left, or when what lives in it
is moved (compaction).

    files.py        a folder of files: write, sync, read
    frame.py        how a record lies in a segment file; torn or damaged
    run.py          where entries lie: compact rows, in memory and in index files
    segment.py      one segment file, and how it is created
    synced.py       a note beside them: up to where the newest one is on the disk
    index.py        which entries there are, for the writing thread and for readers
    recovery.py     from files back to state, at start
    doubt.py        what a damaged node may have lost without knowing what it was
    compaction.py   gives room back, and lets damaged segments go
    options.py      how a store keeps its files: durability and sizes
    commands.py     what a store is asked for, and what it answers
    group.py        commands that share one sync: what is decided, and how it is written
    store.py        the storage node's deciding and writing core; one thread, no asyncio
"""
