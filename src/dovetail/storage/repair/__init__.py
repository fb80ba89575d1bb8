"""Keeping every ledger at full strength, and every storage node honest about what it holds.

Owners copy what a node lacks or what a lost node held; a storage node sweeps away what no chain
names, and after damage finds out what it must hold. A copy is safe whoever makes it: an entry id
has one payload for ever, and the chain names a node only when that node holds all of its place.

    plan.py          what a closed ledger needs to be whole again; pure
    repairer.py      an owner brings its closed ledgers back to full strength
    copying.py       entries go from node to node, no faster than a rate
    rate.py          bytes a second, for work in the background
    sweeping.py      a storage node lets go what no chain names
    wholeness.py     a damaged storage node finds out what it must hold
    scrubber.py      a storage node reads what it holds, slowly, for damage
    upkeep.py        both of these, at start and from time to time
    decommission.py  takes a storage node out of the cluster
"""
