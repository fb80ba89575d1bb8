"""The examples run, and the migrations of Django and Alembic make the same tables."""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from tests import warm_python
from tests.outbox_kit import SECONDS_MAX, drain_all, pending, read_all

from dovetail.outbox.alembic import (
    create_inbox,
    create_outbox,
    drop_inbox,
    drop_outbox,
    narrow_inbox,
    widen_inbox,
)
from dovetail.outbox.database import open_engine
from dovetail.outbox.schema import DROP_STATEMENTS, check_version, driver_text, version_of

ROOT = Path(__file__).parents[3]


def _wait_sent(url: str) -> None:
    import time

    deadline = time.monotonic() + SECONDS_MAX
    while pending(open_engine(url)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def shop(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The FastAPI example on a database of its own."""
    monkeypatch.setenv("DATABASE", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("KAFKA", kafka)
    module = importlib.import_module("examples.outbox_fastapi.app")
    return importlib.reload(module)


async def test_the_fastapi_example(shop: ModuleType, kafka: str) -> None:
    """O2: an order and its event together, or not at all; the relay runs inside."""
    shop.Base.metadata.create_all(shop.engine)
    shop.create_tables(shop.engine)
    transport = httpx.ASGITransport(app=shop.app)
    async with (
        shop.lifespan(shop.app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        assert (await client.post("/orders", json={"total": 12.5})).json() == {"id": 1}
        assert (await client.post("/orders", json={"total": -1})).status_code == 422
        await asyncio.to_thread(_wait_sent, shop.DATABASE)
    shop.engine.dispose()
    found = [json.loads(record.value or b"") for record in read_all(kafka, "orders")]
    assert found == [{"id": 1, "total": 12.5}]


_DJANGO = """
import django, sys
from django.conf import settings
url = sys.argv[1]
settings.configure(
    SECRET_KEY="x", USE_TZ=True, INSTALLED_APPS=["dovetail.outbox.django"],
    DATABASES={"default": DATABASE},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
from dovetail.errors import InvalidInput
from examples.outbox_django.shop import create_order, orders
assert create_order(12.5) == 1
try:
    create_order(-1.0)
except ValueError:
    pass
else:
    raise SystemExit("it did not fail")
try:
    orders.publish("outside")
except InvalidInput as error:
    assert "atomic" in str(error)
else:
    raise SystemExit("it did not refuse")

from django.db import connection
from dovetail.outbox import Inbox
inbox = Inbox("billing")
for expected in (["a", "b"], []):
    with transaction.atomic():
        assert inbox.new(connection, ["a", "b"]) == expected
try:
    inbox.new(connection, ["c"])
except InvalidInput as error:
    assert "autocommit" in str(error)
else:
    raise SystemExit("it did not refuse")
"""


@pytest.mark.parametrize("kind", ["postgres", "maria", "sqlite"])
def test_the_django_example(
    kind: str, kafka: str, new_database_of: Callable[[str], str], tmp_path: Path
) -> None:
    """O2, O10, O13: migrations make the tables everywhere, `transaction.atomic` covers both."""
    url = new_database_of(kind)
    engine = open_engine(url)
    with engine.begin() as connection:
        for statement in DROP_STATEMENTS[engine.dialect.name]:
            connection.exec_driver_sql(driver_text(engine.dialect.paramstyle, statement))
    parsed = make_url(url)
    engines = {"postgres": "postgresql", "maria": "mysql", "sqlite": "sqlite3"}
    database = {
        "ENGINE": f"django.db.backends.{engines[kind]}",
        "NAME": parsed.database,
        "HOST": parsed.host or "",
        "PORT": parsed.port or "",
        "USER": parsed.username or "",
    }
    script = _DJANGO.replace("DATABASE}", f"{database!r}}}")
    if kind == "maria":
        script = (
            "import pymysql; pymysql.version_info = (2, 2, 1, 'final', 0)\n"
            "pymysql.install_as_MySQLdb()\n" + script
        )
    done = warm_python.run(
        [sys.executable, "-c", script, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_version(engine)
    with engine.connect() as connection:
        waiting = connection.exec_driver_sql("SELECT topic, payload FROM kafka_messages").all()
    assert [(row[0], json.loads(row[1])) for row in waiting] == [
        ("orders", {"id": 1, "total": 12.5})
    ]
    drain_all(url, kafka)


@pytest.mark.parametrize("kind", ["postgres", "maria", "sqlite"])
def test_an_alembic_migration(kind: str, new_database_of: Callable[[str], str]) -> None:
    """O10, O13: up and down."""
    engine = open_engine(new_database_of(kind))
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        drop_outbox(operations)
        assert not inspect(connection).has_table("kafka_messages")
        create_outbox(operations)
        assert version_of(connection) == 1
        create_inbox(operations)
        assert version_of(connection) == 2
        narrow_inbox(operations)
        assert version_of(connection) == 3
        widen_inbox(operations)
        assert version_of(connection) == 2
        narrow_inbox(operations)
        drop_inbox(operations)
        assert version_of(connection) == 1
        create_inbox(operations)
        narrow_inbox(operations)
    assert inspect(engine).has_table("kafka_topic_info")
