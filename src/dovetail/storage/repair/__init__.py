"""Keeps every ledger at full strength, and every storage node honest about what it holds.

Owners copy what a node lacks or what a lost node held. A storage node deletes ledgers that no chain
names and, after damage, finds out what it must hold. Copying is always safe, whichever broker does
it: an entry id has one payload for ever, and the chain names a node only when that node holds
everything of its place.

    plan.py          what a closed ledger needs to be whole again; pure
    repairer.py      an owner brings its closed ledgers back to full strength
    copying.py       copies entries from node to node at a limited rate
    rate.py          bytes a second, for background work
    sweeping.py      a storage node deletes ledgers that no chain names
    wholeness.py     a damaged storage node finds out what it must hold
    scrubber.py      a storage node slowly reads all it holds, to find damage
    upkeep.py        runs sweeping and wholeness, at start and periodically
    decommission.py  takes a storage node out of the cluster
"""
