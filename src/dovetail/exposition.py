"""Metrics over HTTP for processes without a web server: a relay, a driver; and the series about
background work, which every process has.

One daemon thread answers `/metrics`, in the format that the scraper asks for. A scrape never waits
for the process's work, and the work never waits for a scrape.

A node has tens of thousands of series that rarely change. `Rendered` ones supply their own text,
and `render` puts it between what the library writes.
"""

from collections.abc import Iterable, Iterator, Sequence
from threading import Thread
from typing import Final, cast
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dovetail.addresses import Address
from dovetail.errors import Unavailable
from dovetail.supervision import Supervisor

#: The last line of a page of OpenMetrics.
_END: Final = b"# EOF\n"

# When a series began is of no use here, and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Rendered(Metric):
    """Series that are text already, in the lines that both formats share; it has no samples."""

    def __init__(self, name: str, about: str, labels: Sequence[str], lines: str) -> None:
        super().__init__(name, about, "gauge")
        self._labelnames = tuple(labels)
        self.text = f"# HELP {name} {about}\n# TYPE {name} gauge\n{lines}".encode()


class _Families:
    """What a registry had, for an encoder that asks a registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page of a registry in the format that a scraper accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    families = list(registry.collect())
    rendered = b"".join(family.text for family in families if isinstance(family, Rendered))
    others = _Families(family for family in families if not isinstance(family, Rendered))
    page = encode(cast("CollectorRegistry", others))
    rest = page.removesuffix(_END)
    return rest + rendered + page[len(rest) :], content_type


class BackgroundCollector(Collector):
    """Background work that has failed, as it is at the moment of the scrape."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "dovetail_background_failures",
            "Unexpected failures of background work, which was started again.",
            labels=["work"],
        )
        failing = GaugeMetricFamily(
            "dovetail_background_failing",
            "1 while background work fails again and again.",
            labels=["work"],
        )
        now_failing = self._supervisor.failing()
        for name, count in self._supervisor.counts().items():
            failures.add_metric([name], count)
            failing.add_metric([name], name in now_failing)
        yield from (failures, failing)


class MetricsServer:
    """Serves a registry until it is stopped, or the process ends."""

    def __init__(self, server: WSGIServer, thread: Thread, host: str) -> None:
        self._server, self._thread = server, thread
        self.host, self.port = host, int(server.server_port)

    @property
    def url(self) -> str:
        """Where it is scraped."""
        return f"http://{Address(self.host, self.port)}/metrics"

    def stop(self) -> None:
        """Ends it; scrapes under way are answered."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serves `registry`, with the process's own memory, processor time and open files added.

    Port 0 takes any free one. Raises `Unavailable` if the address cannot be taken.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Unavailable(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another "
            "address with metrics.host and metrics.port, or metrics.enabled = false"
        ) from error
    ProcessCollector(registry=registry)
    return MetricsServer(server, thread, host)
