"""Exactly one outcome for each job, however many attempts serve a partition.

chain.py      the protocol: what is written, what counts, where the next attempt begins  pure
snapshot.py   where an attempt begins to read, as stored in a group                     pure
rows.py       rows of a chain as record batches                                         pure
chain_id.py   the id of a team's chain, in the checkpoint
lane.py       writes to one output partition, and reads it back
"""
