"""`dovetail config`: which settings are in force, and why."""

import typer

from dovetail.cli.options import ConfigOption, JsonOption, SetOption, examples, settings_of

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
    """Print every setting: its value, its origin and what it does.

    A flag is stronger than the environment, that than the file, that than the default.
    """
    from dovetail.cli.output import print_json, print_table
    from dovetail.settings import format_bytes, format_duration_ms
    from dovetail.settings.given import variable_of

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

    def readable(name: str, value: str | int | float | bool) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            if "_ms" in name:
                return format_duration_ms(value)
            return format_bytes(value) if "_bytes" in name else str(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        return value if value != "" else '""'

    print_table(
        ["name", "value", "origin", "description"],
        (
            (shown.name, readable(shown.name, shown.value), shown.origin, shown.description)
            for shown in settings.shown()
        ),
    )


@app.command("reference", epilog=examples("dovetail config reference > settings.md"))
def reference() -> None:
    """Print what can be set, with defaults and bounds, as a page of Markdown."""
    from dovetail.settings.reference import reference as page

    typer.echo(page(), nl=False)
