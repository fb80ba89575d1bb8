"""`dovetail completion`: the script by which a shell completes commands, options and names."""

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # Not exported.

from dovetail.cli.options import examples

EPILOG = examples(
    "source <(dovetail completion bash)        # for this shell; into ~/.bashrc for all",
    "dovetail completion zsh > ~/.zfunc/_dovetail",
    "dovetail completion fish > ~/.config/fish/completions/dovetail.fish",
)

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.")],
) -> None:
    """Print the script that makes a shell complete `dovetail`.

    It completes topics, groups, timelines and settings too: it asks the node that the typed command
    would talk to.
    """
    script = get_completion_script(
        prog_name="dovetail", complete_var="_DOVETAIL_COMPLETE", shell=shell
    )
    typer.echo(script)
