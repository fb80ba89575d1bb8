"""Whether a Kafka node listens at an address and accepts the login, found out in one request.

The request is encoded by hand: every command of the command line sends it first, and importing the
whole codec takes long.
"""

import socket
import ssl
import struct
from collections.abc import Mapping

from dovetail.addresses import Address
from dovetail.errors import ProtocolViolation
from dovetail.wire.login import ClientLogin, conversation

_METADATA_KEY = 3
_METADATA_VERSION = 4
#: About no topic, and none is to be created.
_METADATA_OF_NOTHING = struct.pack("!i?", 0, False)

#: Length of the frame, api key, version, correlation id, length of the client id.
_HEADER = struct.Struct("!ihhih")
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


class SpeaksHttp(ProtocolViolation):
    """A web server is behind the address."""


class Greeter:
    """Greets nodes with one login."""

    def __init__(self, security: Mapping[str, str], *, client_id: str) -> None:
        """`security`: TLS and login, as librdkafka takes them. Raises `InvalidInput`."""
        self._login = ClientLogin.of(security)
        self._client_id = client_id

    def greet(self, line: socket.socket, address: Address) -> None:
        """Encrypts, logs in and asks; returns when the node has answered, and closes `line`.

        Raises `Forbidden` if it refuses the login, `ProtocolViolation` if this is not Kafka,
        `TimeoutError` if it says nothing within the time limit of `line`, else `OSError`.
        """
        name = self._client_id
        if self._login.tls is not None:
            line = self._login.tls.wrap_socket(line, server_hostname=address.host)
        with line:
            talk = conversation(self._login)
            try:
                request = next(talk)
                while True:
                    request = talk.send(_ask(line, *request, client_id=name))
            except StopIteration:
                pass
            _ask(line, _METADATA_KEY, _METADATA_VERSION, _METADATA_OF_NOTHING, client_id=name)

    def hint(self, error: Exception) -> str:
        """What to look at when a node hangs up or cannot be understood; empty if that is plain."""
        return "" if isinstance(error, SpeaksHttp) else self._login.hint(error)


def _ask(line: socket.socket, key: int, version: int, body: bytes, *, client_id: str) -> memoryview:
    """What is behind the correlation id of the answer."""
    name = client_id.encode()
    rest = name + body
    line.sendall(_HEADER.pack(_HEADER.size - 4 + len(rest), key, version, 0, len(name)) + rest)

    first = _read(line, 4)
    if first == b"HTTP":
        raise SpeaksHttp("it speaks HTTP; give the port for Kafka clients (kafka.port)")
    length = int.from_bytes(first, "big", signed=True)
    if not 4 <= length <= _ANSWER_BYTES_MAX:
        raise ProtocolViolation("it does not answer in Kafka's protocol")
    return memoryview(_read(line, length))[4:]


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            some = line.recv(size - len(data))
        except ssl.SSLEOFError:
            some = b""
        if not some:
            raise ConnectionResetError("it closed the connection")
        data += some
    return data
