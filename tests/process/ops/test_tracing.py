"""One order's way through the house, as one trace."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from sqlalchemy import create_engine
from tests import warm_python
from tests.conftest import NodeFactory
from tests.process.ops.otlp_collector import running_collector

from dovetail.outbox.schema import create_tables

SHOP = Path(__file__).with_name("traced_shop.py")
SECONDS_MAX = 60

#: Each span and its parent.
TREE = {
    "shop: checkout": None,
    "shop: publish orders": "shop: checkout",
    "dovetail-relay: send orders": "shop: publish orders",
    "dovetail-shop: work price": "shop: publish orders",
    "dovetail-shop: look up prices": "dovetail-shop: work price",
    "dovetail-shop: work audit": "dovetail-shop: work price",
    "shop: bill": "dovetail-shop: work audit",
    "shop: schedule reminders": "shop: bill",
    "dovetail-dovetail-1: deliver reminders": "shop: schedule reminders",
    "shop: handle reminders": "shop: schedule reminders",
    "shop: mail": "shop: handle reminders",
}


def _environment(**more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("DOVETAIL_", "OTEL_"))}
    root = Path(__file__).parents[3]
    return {**plain, **more, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}


@contextmanager
def _relay(database: str, kafka: str, environment: dict[str, str]) -> Iterator[None]:
    with warm_python.Popen(
        [sys.executable, "-m", "dovetail", "relay", "-d", database, "-k", kafka], env=environment
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(SECONDS_MAX) == 0


def _shop(bootstrap: str, database: Path, environment: dict[str, str]) -> list[str]:
    done = warm_python.run(
        [sys.executable, SHOP, bootstrap, database],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=SECONDS_MAX,
        check=True,
    )
    headers: list[str] = json.loads(done.stdout)["headers"]
    return headers


def test_one_order_is_one_trace(tmp_path: Path, node_factory: NodeFactory) -> None:
    """U6: outbox, relay, log, teams and timeline in one trace, with the right parents."""
    database = tmp_path / "shop.db"
    create_tables(create_engine(f"sqlite:///{database}"))
    with running_collector() as collector:
        told = {
            "tracing_enabled": "true",
            "tracing_endpoint": collector.url,
            "tracing_export_ms": "100",
        }
        environment = _environment(**{f"DOVETAIL_{k.upper()}": v for k, v in told.items()})
        node = node_factory(**told)
        with _relay(f"sqlite:///{database}", node.bootstrap, environment):
            headers = _shop(node.bootstrap, database, environment)
        assert "traceparent" in headers
        assert node.stop() == 0
        spans = collector.wait(lambda found: found.keys() >= TREE.keys(), SECONDS_MAX)
    _check_tree(spans)


def _check_tree(spans: dict[str, Span]) -> None:
    assert spans.keys() == TREE.keys()
    assert len({span.trace_id for span in spans.values()}) == 1
    for name, parent in TREE.items():
        expected = b"" if parent is None else spans[parent].span_id
        assert spans[name].parent_span_id == expected, name
    kinds = {name: Span.SpanKind.Name(span.kind) for name, span in spans.items()}
    assert kinds["shop: publish orders"] == "SPAN_KIND_PRODUCER"
    assert kinds["dovetail-relay: send orders"] == "SPAN_KIND_CLIENT"
    assert kinds["dovetail-shop: work price"] == "SPAN_KIND_CONSUMER"
    assert kinds["shop: handle reminders"] == "SPAN_KIND_CONSUMER"
    late = spans["dovetail-dovetail-1: deliver reminders"]
    scheduled = spans["shop: schedule reminders"]
    assert late.start_time_unix_nano >= scheduled.start_time_unix_nano + 90_000_000
