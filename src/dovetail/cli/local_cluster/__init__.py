"""A cluster on this machine: `dovetail cluster`.

A plan lists the processes, with their numbers and ports; it is stored before the first one starts.
Which of them run is never stored: the system is asked.

    plan.py        the processes of a cluster, decided before anything starts; pure
    folder.py      the folder of a cluster: its plan, data and logs
    processes.py   finds, starts, signals and ends processes
    starting.py    brings a cluster up: the plan, then its processes that do not run yet
    etcd.py        which etcd to run
    postgres.py    the PostgreSQL that keeps timelines: which, and its data
    view.py        `dovetail cluster status`: processes, members, partitions
"""
