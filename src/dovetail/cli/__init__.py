"""The command line: `dovetail NOUN VERB`.

`up` and `node` run a node in this process. Every other command that talks to a node is an ordinary
Kafka client, through the same library that users have, so it works against any Kafka too. Commands
only present: what an operator can ask or change is in `dovetail.admin`.

Promises: tables for people, `--json` for programs (answers on standard output, everything else on
standard error); an expected failure is one message that says what happened and what to do, never a
traceback; the exit code names the kind of failure (`outcome.ExitCode`).

A command's module is imported when the command is called, so its imports stand at its head, and
`dovetail --help` imports no command. What is optional (Spark, psutil) is still imported where it is
used.

    app.py               the root: which commands there are, and where each is found
    loading.py           loads a command when it is called, and cheaply
    outcome.py           exit codes; expected errors become messages
    options.py           options that commands share, and the settings behind them
    client.py            opens the Kafka client of a command
    timeline_client.py   opens the client of timelines
    output.py            tables and notes for people, JSON for programs
    printable.py         text from elsewhere, so that it commands no terminal
    progress.py          the progress bar
    confirming.py        the question before something is deleted
    completing.py        what a shell offers after TAB
    spark_options.py     what the commands that are Spark jobs share
    brokers.py           several brokers on one machine, for `dovetail up --brokers`
    starting.py          why a node cannot start, and which flag to change
    program.py           how this program was called, for hints that can be copied
    commands/            one module for each noun or verb
    local_cluster/       `dovetail cluster`: a cluster on this machine
    lead/                `dovetail lead`: a command on one machine of several
    saving/              `dovetail backup` and `dovetail restore`
    doctor/              `dovetail doctor`: checks of a set-up
    top/                 `dovetail top`: the live view
"""

import faulthandler
import os
import signal
import sys


def main() -> None:
    """Entry point of the `dovetail` program."""
    _open_standard_files()
    # Of a process that stands still, this says where.
    faulthandler.register(signal.SIGUSR1)
    try:
        # Here, so that Ctrl-C while modules are imported ends as quietly as later.
        from dovetail.cli.app import app

        app(prog_name="dovetail")
    except KeyboardInterrupt:
        sys.exit(130)


def _open_standard_files() -> None:
    """Nothing, in place of what whoever started us has closed of descriptors 0, 1 and 2.

    The next file would get such a number: what a library writes to standard error would go into
    it, and uvloop ends a process that closes one of these.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            if nothing != number:
                os.close(nothing)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
