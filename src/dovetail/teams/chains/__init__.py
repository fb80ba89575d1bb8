"""Exactly one outcome for each job, whoever works on a partition and however many do.

chain.py      the protocol: what is written, what counts, where the next attempt begins  pure
snapshot.py   where an attempt begins to read, as a group holds it                      pure
rows.py       rows of a chain as record batches                                         pure
chain_id.py   what names the chain of a team, in the checkpoint
lane.py       writes to one output partition, and reads it back
"""
