"""The tables of the outbox in an Alembic migration.

from dovetail.outbox.alembic import create_outbox, drop_outbox

def upgrade() -> None:
    create_outbox(op)

def downgrade() -> None:
    drop_outbox(op)

The inbox needs a separate migration after it: `create_inbox(op)` and `narrow_inbox(op)`; undone by
`drop_inbox(op)`. Where `create_inbox` has run already, `narrow_inbox(op)` is a migration of its
own, undone by `widen_inbox(op)`.
"""

from typing import Any

from sqlalchemy import text

from dovetail.outbox.schema import (
    DROP_INBOX_STATEMENTS,
    DROP_STATEMENTS,
    WIDEN_INBOX_STATEMENTS,
    statements_of,
)


def create_outbox(op: Any) -> None:
    """Makes the tables; `op` is Alembic's."""
    for statement in statements_of(op.get_context().dialect.name, 1):
        op.execute(_as_text(statement))


def create_inbox(op: Any) -> None:
    """Makes the table of the inbox, where `create_outbox` has made the others."""
    for statement in statements_of(op.get_context().dialect.name, 2):
        op.execute(_as_text(statement))


def narrow_inbox(op: Any) -> None:
    """Rebuilds the index of the inbox, version 3: the table is locked meanwhile."""
    for statement in statements_of(op.get_context().dialect.name, 3):
        op.execute(_as_text(statement))


def widen_inbox(op: Any) -> None:
    """Undoes `narrow_inbox`, for programs of before."""
    for statement in WIDEN_INBOX_STATEMENTS[op.get_context().dialect.name]:
        op.execute(_as_text(statement))


def drop_inbox(op: Any) -> None:
    """Drops the table of the inbox: what was handled may be handled again."""
    for statement in DROP_INBOX_STATEMENTS:
        op.execute(_as_text(statement))


def drop_outbox(op: Any) -> None:
    """Drops the tables, with everything that waits in them."""
    for statement in DROP_STATEMENTS[op.get_context().dialect.name]:
        op.execute(_as_text(statement))


def _as_text(statement: str) -> Any:
    """No colon in these statements is the mark of a parameter."""
    return text(statement.replace(":", "\\:"))
