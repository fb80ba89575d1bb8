"""Compaction (L17): keeps the last record of each key and removes older ones.

    plan.py         what may be compacted, when, and in which pieces; pure
    key_map.py      where each key was seen last, and which records of a batch remain
    cleaning.py     the rules: what remains of each batch; pure
    compactor.py    reads, writes and swaps: one partition at a time, at a limited rate

Ledgers are immutable. A pass puts the keys of everything not yet compacted into a map, then reads
the log from its start and writes what remains to new ledgers, each of which replaces some adjacent
ones:

    the record names the new ledger  →  it is written  →  one compare-and-set puts it into the chain
    and takes its sources out of it  →  the sources are deleted

A crash leaves the old chain or the new one. The record names an unfinished ledger, which is deleted
at the next look at the partition. Sources that were not deleted are in no chain, and sweeping
deletes them. Readers follow the chain: one whose ledger is gone looks again.

If the map of keys is full, the pass ends with the first record that did not fit: everything before
it is compacted, and the next pass continues from there.
"""
