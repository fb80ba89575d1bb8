"""A schema registry of some fixed schemas, for tests that need no real one."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import descriptor_pb2

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "raw", "type": "bytes"},
    ],
}
#: Its values can take six bytes on the wire, and a billion objects in memory.
NOTHINGS = {"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}}


def protobuf_files() -> tuple[str, str]:
    """Two files, of which the first imports the second and one of Protobuf's own, in base64."""
    part = descriptor_pb2.FileDescriptorProto(name="part.proto", package="shop", syntax="proto3")
    part.message_type.add(name="Part").field.add(name="sku", number=1, type=9, label=1)
    file = descriptor_pb2.FileDescriptorProto(name="x", package="shop", syntax="proto3")
    file.dependency.extend(["part.proto", "google/protobuf/timestamp.proto"])
    file.message_type.add(name="Unused")
    order = file.message_type.add(name="Order")
    order.field.add(name="part", number=1, type=11, label=1, type_name=".shop.Part")
    stamp = ".google.protobuf.Timestamp"
    order.field.add(name="made_at", number=2, type=11, label=1, type_name=stamp)
    one, other = (base64.b64encode(each.SerializeToString()).decode() for each in (file, part))
    return one, other


def _answers() -> dict[str, dict[str, Any]]:
    order, part = protobuf_files()
    reference = {"name": "part.proto", "subject": "part", "version": 1}
    proto = {"schemaType": "PROTOBUF", "schema": order, "references": [reference]}
    return {
        "/schemas/ids/1": {"schema": json.dumps(ORDER)},
        "/schemas/ids/2": {"schemaType": "JSON", "schema": '{"type": "object"}'},
        "/schemas/ids/3": proto,
        "/schemas/ids/4": {"schema": json.dumps(NOTHINGS)},
        "/subjects/part/versions/1": {
            "schemaType": "PROTOBUF",
            "schema": part,
            "subject": "part",
            "version": 1,
            "id": 30,
        },
    }


@contextmanager
def fake_registry() -> Iterator[str]:
    """Its URL, while it answers."""
    answers = _answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {"error_code": 40403, "message": "Schema not found"}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
