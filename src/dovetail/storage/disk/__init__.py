"""One storage node's disk: segment files, their index, and recovery at start.

All ledgers of a node share one sequence of segment files. So one sync serves everything that waits,
however many partitions are written; 1,000 files would need 1,000 syncs. The price: space is freed
only when a segment has no live entry left, or when its live entries are moved (compaction).

    files.py        a folder of files: write, sync, read
    frame.py        the format of a segment file; distinguishes torn from damaged
    run.py          where entries lie: compact rows, in memory and in index files
    segment.py      one segment file, and how it is created
    synced.py       a note beside the segments: up to where the newest one is on disk
    index.py        which entries exist, for the writing thread and for readers
    recovery.py     rebuilds the state from the files at start
    doubt.py        what a damaged node may have lost without knowing it
    compaction.py   frees space, and drops damaged segments
    options.py      settings of a store: durability and sizes
    room.py         whether the disk is above its reserve
    commands.py     the commands to a store, and its answers
    group.py        commands that share one sync: what was decided, and their bytes
    store.py        the core of a storage node: decides and writes; one thread, no asyncio
"""
