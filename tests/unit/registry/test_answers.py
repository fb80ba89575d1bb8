"""What a registry, or something that stands before it, answers instead of a schema."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dovetail.errors import InvalidInput, Unavailable
from dovetail.registry import Registry, decoder, encoder, payloads
from dovetail.registry.framing import framed

pytest.importorskip("confluent_kafka.schema_registry.avro")


@contextmanager
def answering(status: int, body: bytes, *, silent: bool = False) -> Iterator[Registry]:
    """A registry that always answers this; or takes requests and says nothing."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if silent:
                done.wait(120)
                return
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - named by the base class

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Registry(f"http://127.0.0.1:{server.server_port}", {"max.retries": 0})
    finally:
        done.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_registry_that_hangs_ends_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: it took the connection and never answered; the process waited for ever."""
    monkeypatch.setattr(payloads, "ANSWER_S_MAX", 0.3, raising=False)
    with answering(200, b"", silent=True) as registry:
        failed: list[Exception] = []

        def read() -> None:
            try:
                decoder(registry, "t", "avro")(framed(1, b"x"))
            except Exception as error:
                failed.append(error)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        reading.join(60)
        assert [type(error) for error in failed] == [Unavailable]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>back soon</html>"),
        (200, b'{"schema":"\xff"}'),
        (200, b"[" * 100_000),
        (302, b""),
        (404, b"<h1>no such route</h1>"),
        (408, b'{"error_code":408,"message":"slow"}'),
        (429, b'{"error_code":429,"message":"many"}'),
        (503, b'{"error_code":50301,"message":"later"}'),
    ],
)
def test_what_no_registry_says_can_be_tried_again(status: int, body: bytes) -> None:
    """R8, F53: the page of a gateway said that the message was wrong, so it was given up."""
    with answering(status, body) as registry:
        with pytest.raises(Unavailable):
            decoder(registry, "t", "avro")(framed(1, b"\x02a"))
        with pytest.raises(Unavailable):
            encoder(registry, "t", avro='"string"')("a")


def test_what_a_registry_refuses_is_the_callers_mistake() -> None:
    """R8: also a payload that is not JSON, by a registry that answers well."""
    with (
        answering(404, b'{"error_code":40403,"message":"Schema 7 not found"}') as registry,
        pytest.raises(InvalidInput, match="40403"),
    ):
        decoder(registry, "t", "avro")(framed(7, b"\x02a"))
    with (
        answering(422, b'{"error_code":42201,"message":"no schema"}') as registry,
        pytest.raises(InvalidInput, match="42201"),
    ):
        encoder(registry, "t", avro='"string"')("a")
    with (
        answering(200, b'{"schema":"{}","schemaType":"JSON"}') as registry,
        pytest.raises(InvalidInput),
    ):
        decoder(registry, "t", "json")(framed(9, b"not json"))
