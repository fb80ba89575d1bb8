"""Compaction (L17): the last record of each key stays, older ones go.

    plan.py         what may be compacted, when, and in which pieces; pure
    key_map.py      where each key was seen last, and what is left of a batch by it
    cleaning.py     what is left of each batch of a log; pure
    compactor.py    reads, writes and swaps: one partition at a time, at a rate

Ledgers are immutable. A pass puts the keys of what was never compacted into a map, then reads the
log from its start and writes what stays to new ledgers, each in the place of some neighbours:

    the record names the new ledger  →  it is written  →  one compare-and-set puts it into the chain
    and takes its sources out of it  →  the sources are deleted

A crash leaves the old chain or the new one. What was being written is named in the record, and goes
when the partition is looked at next. Sources that were not deleted are in no chain, and are swept
away. Readers go by the chain: one that finds its ledger gone looks again.

If the keys do not fit into the map, the pass ends with the first record that found no room: what is
in front of it is compacted, and the next pass goes on from there.
"""
