"""`dovetail lead NAME -- COMMAND`: a command that runs on one of several machines.

The program that has the lease of NAME (`timeline/client/leading.py`) runs the command; the others
stand by.

    standby ─────lease──> running ──the command ends──> its exit code
         ▲                    │
         └──the command ended─┴── lease not extended: SIGTERM, then SIGKILL, before it ends

Between this program and the command stands a guard, a small process that knows until when the lease
is ours and ends the command by itself at that time. So the command ends in time even if this
program is killed, stopped, or stuck; and the lease is given back after the command has ended.

    0 ────────────────── 3/4 ───────── 7/8 ───────── 1          parts of a lease, from its extension
    extended, at 1/3     SIGTERM       SIGKILL       another's

Not here: a command that was stopped together with its guard, for example by a machine that sleeps,
runs on for a moment after it wakes. What it writes to should refuse an old term (LEAD_TERM).

    command.py   the command line, signals and exit codes
    running.py   runs one command under one lease: extends its time, awaits its exit code
    guard.py     the guard; a separate program of the standard library alone
"""
