"""A collector of spans: OTLP over HTTP with the real protobufs, in this process."""

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What was received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._changed = threading.Condition()
        self._spans: list[tuple[str, Span]] = []

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            for part in request.resource_spans:
                about = {item.key: item.value.string_value for item in part.resource.attributes}
                for scope in part.scope_spans:
                    self._spans += [(about["service.name"], span) for span in scope.spans]
            self._changed.notify_all()

    def spans(self) -> dict[str, Span]:
        """By service and name."""
        with self._changed:
            return {f"{service}: {span.name}": span for service, span in self._spans}

    def wait(self, holds: Callable[[dict[str, Span]], bool], seconds: float) -> dict[str, Span]:
        """The spans, once it holds; those that are there when time is up."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not holds(self.spans()) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        return self.spans()


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Serves on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    collector._changed = threading.Condition(threading.RLock())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
