"""The table of the inbox with one index less, version 3."""

from importlib import import_module
from typing import Any

from django.db import migrations

from dovetail.outbox.schema import WIDEN_INBOX_STATEMENTS, statements_of

# A module whose name begins with a digit.
_run = import_module("dovetail.outbox.django.migrations.0001_initial").run


def _narrow(_: Any, schema_editor: Any) -> None:
    _run(schema_editor, statements_of(schema_editor.connection.vendor, 3))


def _widen(_: Any, schema_editor: Any) -> None:
    _run(schema_editor, WIDEN_INBOX_STATEMENTS[schema_editor.connection.vendor])


class Migration(migrations.Migration):  # type: ignore[misc] # Django has no types.
    """Locks the table while its index is built."""

    dependencies = (("dovetail_outbox", "0002_inbox"),)
    operations = (migrations.RunPython(_narrow, _widen),)
