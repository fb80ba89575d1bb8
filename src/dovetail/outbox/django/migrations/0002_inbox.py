"""The table of the inbox, version 2."""

from importlib import import_module
from typing import Any

from django.db import migrations

from dovetail.outbox.schema import DROP_INBOX_STATEMENTS, statements_of

# A module whose name begins with a digit.
_run = import_module("dovetail.outbox.django.migrations.0001_initial").run


def _create(_: Any, schema_editor: Any) -> None:
    _run(schema_editor, statements_of(schema_editor.connection.vendor, 2))


def _drop(_: Any, schema_editor: Any) -> None:
    _run(schema_editor, DROP_INBOX_STATEMENTS)


class Migration(migrations.Migration):  # type: ignore[misc] # Django has no types.
    """Makes the table; undone, what was handled may be handled again."""

    dependencies = (("dovetail_outbox", "0001_initial"),)
    operations = (migrations.RunPython(_create, _drop),)
