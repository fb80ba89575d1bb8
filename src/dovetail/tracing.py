"""Traces: one order's way through outbox, log, teams and timelines, by OpenTelemetry.

W3C's `traceparent` travels as a header of a record or of a timeline's message. The producer of a
message puts the context of its own span there; whatever works on the message makes a span with that
parent, and passes its own context to what follows. Nothing changes a message in flight: a relay
sends what was committed, byte for byte, so its span stands beside the work, not above it.

    publish ─┬─ send (relay)
             └─ work (team, or your consumer) ─┬─ work (next team)
                                               └─ schedule ─┬─ deliver (node: late or not)
                                                            └─ handle (your function)

A trace begins where something is made (`publish`, `schedule`), or in your own code. Work on a
message without a context makes no span.

Off, which is the default, `span` returns one object that does nothing, and no package is loaded.
On, spans go to the tracer provider of your application if it has one, else to the collector that
the section `tracing` names, in the background: a collector that is away costs spans, never
messages.

In a node, a relay and a pipeline's driver the settings decide. An application calls `use()` once.
"""

import atexit
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from dovetail.background import start_thread
from dovetail.errors import InvalidSetting

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanKind, Tracer

    from dovetail.settings.tracing import TracingSettings

#: How long the end of a process waits for a collector that does not answer; it can happen twice.
END_S = 1.5

#: The header, in the words of W3C Trace Context.
TRACEPARENT = "traceparent"

#: What a span is to its trace, in OpenTelemetry's words.
Kind = Literal["internal", "producer", "consumer", "client"]
#: Where a context comes from: a value of `traceparent`, or the headers of a message.
Parent = str | bytes | Mapping[str, Any] | Iterable[tuple[str, Any]] | None
Attributes = Mapping[str, str | int | float | bool]


class _Tracing:
    """What is loaded while tracing is on."""

    def __init__(self, settings: "TracingSettings", service: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise _extra_missing(error) from error

        self.settings, self.service = settings, settings.service or service
        self._own: tuple[TracerProvider, SpanExporter] | None = None
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._own = _provider(settings, self.service)
            trace.set_tracer_provider(self._own[0])
            atexit.register(self.end)

        self._trace = trace
        self._context = TraceContextTextMapPropagator()
        self.tracer: Tracer = trace.get_tracer("dovetail")
        self._kinds: dict[str, SpanKind] = {
            "internal": trace.SpanKind.INTERNAL,
            "producer": trace.SpanKind.PRODUCER,
            "consumer": trace.SpanKind.CONSUMER,
            "client": trace.SpanKind.CLIENT,
        }

    def parent(self, given: Parent) -> Any:
        """The context that a message carries; None: the one that this code runs in."""
        text = traceparent_in(given)
        return None if text is None else self._context.extract({TRACEPARENT: text})

    @contextlib.contextmanager
    def span(
        self, name: str, kind: Kind, parent: Parent, attributes: Attributes | None
    ) -> Iterator["Span | None"]:
        with self.tracer.start_as_current_span(
            name, self.parent(parent), self._kinds[kind], attributes
        ) as found:
            yield found

    def past(
        self,
        name: str,
        kind: Kind,
        parent: Parent,
        attributes: Attributes | None,
        began_ns: int,
        ended_ns: int,
        error: str,
    ) -> None:
        found = self.tracer.start_span(
            name, self.parent(parent), self._kinds[kind], attributes, start_time=began_ns
        )
        if error:
            found.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
        found.end(ended_ns)

    def traceparent(self) -> str | None:
        headers: dict[str, str] = {}
        self._context.inject(headers)
        return headers.get(TRACEPARENT)

    def end(self) -> None:
        if self._own is None:
            return
        provider, exporter = self._own
        self._own = None
        ending = start_thread(provider.shutdown, name="tracing/end")
        ending.join(END_S)
        if ending.is_alive():
            # It waits for a collector that is away, and would try again; this interrupts it.
            exporter.shutdown()
            ending.join(END_S)


_tracing: _Tracing | None = None
#: What `span` gives while traces are off.
NO_SPAN: AbstractContextManager[None] = contextlib.nullcontext()


def use(settings: "TracingSettings | None" = None, *, service: str = "dovetail") -> bool:
    """Switches traces on in this process, if the settings say so; whether they are.

    Without `settings` they come from `dovetail.toml` and the environment. `service` is this
    process's name in traces unless `tracing.service` gives one. Called again, it changes nothing.

    Raises `InvalidSetting` if the extra `tracing` is not installed.
    """
    global _tracing  # noqa: PLW0603 - a process traces or it does not
    if _tracing is None:
        if settings is None:
            from dovetail.settings import load_settings

            settings = load_settings().tracing
        if settings.enabled:
            _tracing = _Tracing(settings, service)
    return _tracing is not None


def in_use() -> "TracingSettings | None":
    """The settings by which traces are made in this process; None if none are."""
    return None if _tracing is None else _tracing.settings


def end() -> None:
    """Sends what waits, and switches traces off."""
    global _tracing  # noqa: PLW0603 - as above
    if _tracing is not None:
        _tracing.end()
    _tracing = None


def is_on() -> bool:
    """Whether spans are made; what only prepares them can be left out if not."""
    return _tracing is not None


def span(
    name: str,
    *,
    kind: Kind = "internal",
    parent: Parent = None,
    attributes: Attributes | None = None,
) -> "AbstractContextManager[Span | None]":
    """A span around a block, and the context of what runs inside. None if traces are off.

    `parent` is what the message that is worked on carries; without one it is the span around.
    """
    if _tracing is None:
        return NO_SPAN
    return _tracing.span(name, kind, parent, attributes)


def past_span(
    name: str,
    *,
    parent: Parent,
    began_ns: int,
    ended_ns: int,
    kind: Kind = "internal",
    attributes: Attributes | None = None,
    error: str = "",
) -> None:
    """A span of something that is over, between two times since the epoch."""
    if _tracing is not None:
        _tracing.past(name, kind, parent, attributes, began_ns, ended_ns, error)


def traceparent() -> str | None:
    """The context of the span around, for a message that is made here; None if there is none."""
    return None if _tracing is None else _tracing.traceparent()


def traceparent_in(given: Parent) -> str | None:
    """The value of `traceparent` among headers, or as it is given."""
    if given is None:
        return None
    if not isinstance(given, str | bytes):
        pairs = given.items() if isinstance(given, Mapping) else given
        given = next((value for name, value in pairs if name == TRACEPARENT), None)
    if isinstance(given, bytes):
        return given.decode("ascii", errors="replace")
    return given if isinstance(given, str) else None


def _provider(settings: "TracingSettings", service: str) -> "tuple[TracerProvider, SpanExporter]":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ModuleNotFoundError as error:
        raise _extra_missing(error) from error
    from dovetail import __version__

    about = {
        "service.name": service,
        "service.version": __version__,
        "service.instance.id": f"{os.uname().nodename}-{os.getpid()}",
    }
    provider = TracerProvider(
        resource=Resource.create(about),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=f"{settings.endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(
        BatchSpanProcessor(exporter, schedule_delay_millis=settings.export_ms)
    )
    return provider, exporter


def _extra_missing(error: ModuleNotFoundError) -> InvalidSetting:
    return InvalidSetting(
        f"tracing.enabled is true, and {error.name} is not installed; "
        "pip install 'dovetailmq[tracing]', or set tracing.enabled = false"
    )
