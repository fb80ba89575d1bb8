"""`dovetail doctor`: whether this set-up is sound and, if not, what to do.

Each check has two halves. `gather_*` looks and never judges: it returns a frozen fact, in which a
missing answer is a text. `judge_*` is pure: a fact in, a `Finding` out, with a fix for every
problem. So tests cover every judgement both ways, without a machine that has the problem.

    ok        as it should be
    warning   works, but will hurt: the fix can wait for a quiet hour
    failed    does not work, or loses data: exit code 1
    skipped   nothing to check here, and why

The doctor changes nothing, except that it writes a small file to the data folder, syncs it and
removes it again.

    command.py    the command: all checks, one line each
    finding.py    the result of a check, and its fix
    machine.py    this machine: Python, packages, Spark, open files
    folder.py     the data folder: space, file system, how long a sync takes
    listener.py   the listeners: ports, access, the node behind them, its clock
    cluster.py    the cluster: its nodes, leaders, copies
    attention.py  what needs attention: nodes, groups, timelines, pipelines, dead letters
    services.py   etcd, PostgreSQL, the database of the outbox
"""

from dovetail.cli.doctor.finding import Finding, State

__all__ = ["Finding", "State"]
