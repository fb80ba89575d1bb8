"""Everything at once, for as long as one likes, while things are killed, paused, cut and poisoned.

    python -m tests.soak --minutes 60 --seed 7

A cluster on etcd with timelines on the newest PostgreSQL, a node of its own with timelines on
Debian's PostgreSQL, outboxes on three databases, a shared stream and a pipeline of teams on Spark
carry a steady load, with poison in it. Faults are drawn from the seed; each is healed before the
next, sometimes two are there at once. In the end the load stops, and every part is counted: nothing
lost, nothing doubled beyond its promise, nothing early, nothing stuck, no defect in any log, and
processes that hold no more memory and file handles than they held when they were warm.

    part.py        what a part of the house is
    log.py         records and their order, with all faults of a cluster
    timelines.py   due messages and their leases
    outbox.py      transactions and what the relay sends of them
    stream.py      one leader among replicas
    teams.py       jobs and their outcomes, on Spark
    team_graph.py  the pipeline that teams.py runs
    held.py        memory and file handles of processes
    __main__.py    the run
"""
