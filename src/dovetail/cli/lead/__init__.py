"""`dovetail lead NAME -- COMMAND`: a command that runs on one machine of several.

Whoever has the lease of NAME (`timeline/client/leading.py`) runs the command; the others stand by.

    standing by ──lease──> running ──the command ends──> its exit code
         ▲                    │
         └──the command ended─┴── lease not extended: SIGTERM, then SIGKILL, before it ends

Between this program and the command stands a guard, a small process that knows until when the lease
is ours and ends the command by itself when that time has come. So the command ends in time also if
this program is killed, stopped, or stuck; and the lead is given back after the command has ended.

    0 ────────────────── 3/4 ───────── 7/8 ───────── 1          parts of a lease, from its extension
    extended, at 1/3     SIGTERM       SIGKILL       another's

Not here: a command that was stopped together with its guard, such as by a machine that sleeps, goes
on for a moment when it wakes. What it writes to should refuse an old term (LEAD_TERM).

    command.py   the command line, signals and exit codes
    running.py   one command under one lease: fed with time, ended, its exit code
    guard.py     the guard; a program of its own, of the standard library alone
"""
