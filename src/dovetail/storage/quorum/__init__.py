"""Ledgers on several storage nodes: the quorum protocol.

An ensemble of E nodes holds a ledger; each entry goes to Qw of them and is acknowledged when Qa
have stored it. The machines decide without doing (events in, effects out); `ensembles.py` performs.

    arithmetic.py  quorum sizes, write sets, when a fence holds; pure
    writer.py      writes and confirms entries, replaces failed nodes; pure
    recovery.py    fences a ledger and finds its last entry; pure
    reader.py      reads from one node of a write set; asks the next if it is slow
    ensembles.py   performs what the machines decide, on local and remote nodes alike
"""
