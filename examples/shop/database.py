"""The shop's own database: a SQLite file. The tables of the outbox are in the same file.

python -m examples.shop.database --database shop.db
"""

import argparse
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import create_engine

from dovetail.outbox import create_tables

#: A process that is paused in the middle of a transaction holds up the others for so long.
BUSY_S_MAX = 60.0

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
  id TEXT PRIMARY KEY,
  customer TEXT NOT NULL,
  lines TEXT NOT NULL,                     -- as the customer wrote them, a JSON list
  placed_ms INTEGER NOT NULL,
  paid_ms INTEGER,
  state TEXT NOT NULL DEFAULT 'placed',    -- then: complete, or rejected
  items INTEGER,                           -- from here on: what the teams found
  total_cents INTEGER,
  reason TEXT,
  settled_ms INTEGER
);
CREATE TABLE IF NOT EXISTS declined (id TEXT PRIMARY KEY, declined_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS items (
  id TEXT PRIMARY KEY,
  order_id TEXT NOT NULL,
  fate TEXT NOT NULL,
  told TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS items_of_order ON items (order_id);
CREATE TABLE IF NOT EXISTS reminders (
  order_id TEXT PRIMARY KEY,
  due_ms INTEGER NOT NULL,
  fired_ms INTEGER NOT NULL,
  sent INTEGER NOT NULL,                   -- 0: the order was paid by then
  attempt INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS mails (
  order_id TEXT PRIMARY KEY,
  written_ms INTEGER NOT NULL,
  replica TEXT NOT NULL,
  term INTEGER NOT NULL,
  text TEXT NOT NULL
);
"""


def create(path: Path) -> None:
    """Makes the tables of the shop and of the outbox, if they are not there."""
    with closing(connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(TABLES)
    engine = create_engine(f"sqlite:///{path}")
    create_tables(engine)
    engine.dispose()


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with explicit transactions; for one thread at a time."""
    mode = "ro" if read_only else "rwc"
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S_MAX,
        isolation_level=None,
        check_same_thread=False,
    )


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing: an exception rolls back."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    create(parser.parse_args().database)
