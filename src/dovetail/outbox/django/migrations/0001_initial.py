"""The tables of version 1: the same statements that `dovetail outbox init` runs."""

from typing import Any

from django.db import migrations

from dovetail.outbox.schema import DROP_STATEMENTS, statements_of


def run(schema_editor: Any, statements: tuple[str, ...]) -> None:
    """Runs plain statements."""
    with schema_editor.connection.cursor() as cursor:
        for statement in statements:
            # Without parameters Django hands the text to the driver as it is.
            cursor.execute(statement)


def _create(_: Any, schema_editor: Any) -> None:
    run(schema_editor, statements_of(schema_editor.connection.vendor, 1))


def _drop(_: Any, schema_editor: Any) -> None:
    run(schema_editor, DROP_STATEMENTS[schema_editor.connection.vendor])


class Migration(migrations.Migration):  # type: ignore[misc] # Django has no types.
    """Makes the tables; undone, it drops them with everything that waits in them."""

    initial = True
    operations = (migrations.RunPython(_create, _drop),)
