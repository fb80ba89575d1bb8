"""`dovetail completion`: what makes a shell complete nouns, verbs, options and names."""

from typing import Annotated, Literal

import typer

from dovetail.cli.options import examples

EPILOG = examples(
    "source <(dovetail completion bash)        # for this shell; into ~/.bashrc for all",
    "dovetail completion zsh > ~/.zfunc/_dovetail",
    "dovetail completion fish > ~/.config/fish/completions/dovetail.fish",
)

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that is to complete.")],
) -> None:
    """Print the script that makes a shell complete `dovetail`.

    Topics, groups, timelines and settings are completed too, by asking the node of the command
    that is being typed.
    """
    # Its exports are implicit.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(
        prog_name="dovetail", complete_var="_DOVETAIL_COMPLETE", shell=shell
    )
    typer.echo(script)
