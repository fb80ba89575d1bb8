"""One request on a connection of its own, for what no foreign Python client can ask."""

import socket
from typing import Any

from dovetail.kafka.codec.apis import SUPPORTED
from dovetail.kafka.codec.frames import decode_response, encode_request
from dovetail.kafka.codec.headers import RequestHeader


class RawClient:
    """A blocking connection that asks in our own codec; it is checked against foreign ones."""

    def __init__(self, bootstrap: str, client_id: str = "raw") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._client_id = client_id
        self._asked = 0

    def ask(self, body: Any, version: int | None = None) -> Any:
        """The answer to a request, in the newest version unless one is given."""
        name = type(body).__name__.removesuffix("Request")
        api = next(api for api in SUPPORTED.values() if api.name == name)
        self._asked += 1
        wanted = api.highest if version is None else version
        header = RequestHeader(int(api.key), wanted, self._asked, self._client_id)
        self._socket.sendall(b"".join(encode_request(header, body)))
        size = int.from_bytes(self._read(4), "big")
        return decode_response(header, memoryview(self._read(size)))

    def _read(self, size: int) -> bytes:
        made = bytearray()
        while len(made) < size:
            part = self._socket.recv(size - len(made))
            if not part:
                raise ConnectionError("the server closed the connection")
            made += part
        return bytes(made)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
