"""A cluster on this machine: `dovetail cluster`.

A plan says which processes there are, with their numbers and ports; it is written down before the
first one starts. Which of them run is never written down: the system is asked.

    plan.py        the processes of a cluster, decided before anything starts; pure
    folder.py      the folder of a cluster: its plan, data and logs
    processes.py   finding, starting, signalling and ending processes
    starting.py    brings a cluster up: the plan, then what of it does not run yet
    etcd.py        which etcd to run
    postgres.py    the PostgreSQL that keeps timelines: which, and its data
    view.py        `dovetail cluster status`: processes, members, partitions
"""
