"""docs/reference/cli.md, from the command line's own help.

`python -m tests.cli_reference --write` writes it; a test fails when it is not up to date.
"""

import re
import sys
from pathlib import Path
from typing import Any

import typer

from dovetail.cli.app import COMMANDS, app
from dovetail.cli.loading import load_command
from dovetail.cli.outcome import ExitCode

#: Typer has click's errors, and not under a public name.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]

DOC = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"

_EXIT_CODES = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed; the message says why",
    ExitCode.USAGE: "wrong usage, or a setting that does not fit; nothing was done",
    ExitCode.NOT_FOUND: "what was named does not exist",
    ExitCode.EXISTS: "the name is taken",
    ExitCode.UNREACHABLE: "no node answers at the address",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}

_HEAD = """# The command line

<!-- Written by `python -m tests.cli_reference --write`; change the commands, not this page. -->

`dovetail NOUN VERB`. Every command has `--help` with examples; tables are for people, `--json` is
for programs. Answers go to standard output, everything else to standard error. Settings can be
given to any command, before its noun: `dovetail --config FILE` and
`dovetail --set SECTION.NAME=VALUE` ([all settings](../settings.md)).

`source <(dovetail completion bash)` makes the shell complete nouns, verbs, options, topics, groups
and timelines; zsh and fish too.
"""


def _plain(text: str) -> str:
    return re.sub(r"\[/?bold\]", "", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _options(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        help_text = parameter.help or ""
        if parameter.param_type_name == "argument":
            rows.append(f"| `{parameter.metavar or parameter.name.upper()}` | {_cell(help_text)} |")
            continue
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        value = f" `{parameter.metavar}`" if parameter.metavar else ""
        default = parameter.default
        shown = default not in (None, False, ()) and not callable(default)
        after = f" Default: `{default}`." if shown else ""
        rows.append(f"| {names}{value} | {_cell(help_text)}{after} |")
    return ["| | |", "|---|---|", *rows] if rows else []


def _command(path: tuple[str, ...], command: Any) -> list[str]:
    lines = [f"{'#' * len(path)} {' '.join(path)}", ""]
    lines += [_plain(command.help or "").strip(), ""]
    shown = [
        line.strip() for line in _plain(command.epilog or "").splitlines() if "dovetail " in line
    ]
    if not hasattr(command, "commands"):
        lines += ["```text", *shown, "```", ""]
        lines += [*_options(command), ""]
    for name, below in command.commands.items() if hasattr(command, "commands") else ():
        lines += _command((*path, name), below)
    return lines


def whole_tree() -> Any:
    """The root with every command loaded."""
    root: Any = typer.main.get_command(app)
    root.commands = {name: load_command(name, entry) for name, entry in COMMANDS.items()}
    return root


def refusal(root: Any, words: list[str]) -> str | None:
    """Why a command line is not understood; None if it is."""
    context = root.make_context("dovetail", ["--help"], resilient_parsing=True)
    command = root
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
    if hasattr(command, "commands"):
        return None
    try:
        command.make_context(command.name, list(words), parent=context, resilient_parsing=False)
    except typer.Exit:
        return None
    except _USAGE_ERROR as error:
        return str(error.format_message())
    return None


def page() -> str:
    """The whole page in Markdown."""
    root = whole_tree()
    lines = [_HEAD, "## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in _EXIT_CODES.items()]
    lines.append("")
    for name, command in sorted(root.commands.items()):
        lines += _command(("dovetail", name), command)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        DOC.parent.mkdir(parents=True, exist_ok=True)
        DOC.write_text(page())
    else:
        sys.stdout.write(page())
