"""The command line: `dovetail NOUN VERB`.

`up` runs a node in this process. Every other command that speaks to a node is an ordinary Kafka
client, through the same library that users have, so it works against any Kafka too.

Promises: tables for people, `--json` for programs (answers on standard output, all else on
standard error); an expected failure is one message that says what happened and what to do, never
a traceback; the exit code tells the kind of failure (see `outcome.ExitCode`).

Modules are imported when their command runs: help and completion should feel instant.
"""

import sys


def main() -> None:
    """Entry point of the `dovetail` program."""
    try:
        from dovetail.cli.app import app

        app(prog_name="dovetail")
    except KeyboardInterrupt:
        # Ctrl-C before a command runs, while modules are still being imported.
        sys.exit(130)
