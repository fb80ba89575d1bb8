"""`dovetail config`: which settings are in force, and why."""

import typer

from dovetail.cli.options import ConfigOption, JsonOption, SetOption, examples, settings_of
from dovetail.cli.output import print_json, print_table
from dovetail.settings import format_bytes, format_duration_ms
from dovetail.settings.given import variable_of
from dovetail.settings.reference import reference as reference_page

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail config show", "dovetail config reference"),
)


@app.callback()
def _noun() -> None:
    pass


@app.command(
    "show",
    epilog=examples(
        "dovetail config show",
        "DOVETAIL_KAFKA_PORT=9192 dovetail config show",
        "dovetail config show --config node.toml --json",
    ),
)
def show(
    ctx: typer.Context,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every setting with its value, its origin and what it does.

    A flag overrides the environment, the environment overrides the file, the file the default.
    """
    settings = settings_of(ctx, config=config_file, assignments=assignments)
    if as_json:
        print_json(
            [
                {
                    "name": shown.name,
                    "value": shown.value,
                    "origin": shown.origin.place,
                    "origin_name": shown.origin.name,
                    "variable": variable_of(shown.name),
                    "description": shown.description,
                }
                for shown in settings.shown()
            ]
        )
        return
    print_table(
        ["name", "value", "origin", "description"],
        (
            (shown.name, _readable(shown.name, shown.value), shown.origin, shown.description)
            for shown in settings.shown()
        ),
    )


def _readable(name: str, value: str | int | float | bool) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if "_ms" in name:
            return format_duration_ms(value)
        return format_bytes(value) if "_bytes" in name else str(value)
    return value if value != "" else '""'


@app.command("reference", epilog=examples("dovetail config reference > settings.md"))
def reference() -> None:
    """Print all settings with their defaults and bounds, as a page of Markdown."""
    typer.echo(reference_page(), nl=False)
