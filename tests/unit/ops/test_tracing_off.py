"""Traces that nobody asked for cost nothing, and a collector that is away costs no message."""

import subprocess
import sys

import pytest

from dovetail import tracing
from dovetail.errors import InvalidSetting
from dovetail.outbox import Producer
from dovetail.settings.tracing import TracingSettings

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_off_nothing_is_made_and_nothing_travels() -> None:
    """U6: one object for all spans, no header, and whatever a message carried stays as it was."""
    assert tracing.use(TracingSettings()) is False
    assert not tracing.is_on()
    assert tracing.span("a", parent=CONTEXT) is tracing.span("b")
    assert tracing.traceparent() is None
    with tracing.span("work") as span:
        assert span is None
    producer = Producer("orders", backend="test")
    producer.publish(b"1")
    producer.publish(b"2", headers={"traceparent": CONTEXT})
    plain, carrying = producer.published.on("orders")
    assert plain.headers == ()
    assert carrying.headers == (("traceparent", CONTEXT.encode()),)


def test_off_no_package_is_loaded() -> None:
    """U6: the rooms that can make spans load nothing of OpenTelemetry until somebody asks."""
    names = ("outbox", "timeline.client", "timeline.running", "teams.workers.crew")
    rooms = ", ".join(f"dovetail.{name}" for name in names)
    code = f"import sys, {rooms}; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        (CONTEXT, CONTEXT),
        (CONTEXT.encode(), CONTEXT),
        ({"a": b"1", "traceparent": CONTEXT}, CONTEXT),
        ([("traceparent", CONTEXT.encode()), ("a", None)], CONTEXT),
        ([("traceparent", None)], None),
        ((), None),
    ],
)
def test_a_context_is_found_in_what_carries_it(given: tracing.Parent, found: str | None) -> None:
    """U6: headers as Kafka's clients, timelines and people give them."""
    assert tracing.traceparent_in(given) == found


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """U7: what to install, and how to do without."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidSetting, match=r"dovetailmq\[tracing\].*tracing.enabled = false"):
        tracing.use(TracingSettings(enabled=True))


def test_a_collector_that_is_away_holds_nobody_up() -> None:
    """U6: spans are lost, messages are not; the end waits no longer than it must."""
    code = f"""
from dovetail import tracing
from dovetail.outbox import Producer
from dovetail.settings.tracing import TracingSettings
assert tracing.use(TracingSettings(enabled=True, endpoint="http://127.0.0.1:9"))
producer = Producer("orders", backend="test")
with tracing.span("order", parent="{CONTEXT}"):
    producer.publish(b"1")
    assert tracing.traceparent()[3:35] == "{CONTEXT[3:35]}"
print(dict(producer.published.on("orders")[0].headers)["traceparent"][3:35].decode())
tracing.end()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == CONTEXT[3:35]
