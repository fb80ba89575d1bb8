"""`dovetail doctor`: is this set-up sound, and if not, what to do.

Each check has two halves. `gather_*` looks and never judges: it returns a frozen fact, in which an
answer that did not come is a text. `judge_*` is pure: a fact in, a `Finding` out, with a fix for
whatever is not well. So every judgement is tested both ways, without the machine that ails.

    ok        as it should be
    warning   works, and will hurt: the fix can wait for a quiet hour
    failed    does not work, or loses data: exit code 1
    skipped   nothing to look at here, and why

Nothing is changed: the one thing that is written is a small file in the data folder, which is
synced and removed again.

    command.py    the command: all checks, one line each
    finding.py    what a check found, and what to do about it
    machine.py    this machine: Python, packages, Spark, open files
    folder.py     the data folder: space, file system, how long a sync takes
    listener.py   the listeners: ports, access, the node behind them, its clock
    cluster.py    the cluster: its nodes, leaders, copies
    attention.py  what needs attention: nodes, groups, timelines, pipelines, dead letters
    services.py   etcd, PostgreSQL, the database of the outbox
"""

from dovetail.cli.doctor.finding import Finding, State

__all__ = ["Finding", "State"]
