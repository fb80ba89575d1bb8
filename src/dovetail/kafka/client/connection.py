"""One connection to a broker: requests out, answers in order.

The first request opens it, after TLS and login if there are any.

Each request has one fixed version, chosen so that Kafka 2.7 to 4 and Dovetail support it. Requests
name topics by name.
"""

import socket
import ssl
from typing import Any, NoReturn

from dovetail.addresses import Address
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Refused, Unavailable
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.frames import decode_response, encode_request
from dovetail.kafka.codec.headers import RequestHeader, encode_header
from dovetail.wire.login import NOBODY, ClientLogin, conversation

VERSIONS = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.DESCRIBE_CONFIGS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_GROUPS: 4,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 1,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 0,
}

#: A broker that is there answers a connection in milliseconds; another may be asked instead.
CONNECT_S_MAX = 5.0
#: An answer is a fetch and what stands around it, or one batch that is larger than a fetch.
_FRAME_BYTES_MAX = 256 * 1024 * 1024
_CORRELATION_BYTES = 4


class Connection:
    """One connection to a broker; requests may be sent ahead, answers come in order."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        client_id: str,
        timeout_s: float,
        connect_s: float = CONNECT_S_MAX,
        login: ClientLogin = NOBODY,
    ) -> None:
        self.address = Address(*address)
        self._login = login
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def send(self, api_key: ApiKey, body: Any) -> RequestHeader:
        """Sends a request; its answer is for `receive`. Raises `Unavailable`, `Refused`."""
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        header = RequestHeader(api_key, VERSIONS[api_key], self._correlation_id, self._client_id)
        buffers = encode_request(header, body)
        try:
            _send(self._socket or self._open(), buffers)
        except OSError as error:
            self._broken(error)
        return header

    def receive(self, header: RequestHeader) -> Any:
        """The answer to the oldest request that has none. Raises `Unavailable`."""
        try:
            return decode_response(header, self._read_frame())
        except OSError as error:
            self._broken(error)
        except ProtocolViolation:
            self.close()
            raise

    def call(self, api_key: ApiKey, body: Any) -> Any:
        """Sends a request and waits for its answer. Raises `Unavailable`."""
        return self.receive(self.send(api_key, body))

    def fileno(self) -> int:
        """Its socket, to wait for an answer among others; -1 if it is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __str__(self) -> str:
        return str(self.address)

    def _open(self) -> socket.socket:
        """A new connection, encrypted and logged in. Raises `OSError`, `Refused`."""
        opened = self._socket = socket.create_connection(self.address, self._connect_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        try:
            if self._login.tls is not None:
                opened = self._socket = self._login.tls.wrap_socket(
                    opened, server_hostname=self.address[0]
                )
            self._log_in(opened)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            self.close()
            raise Refused(f"broker {self}: TLS failed: {error}") from error
        except DovetailError:
            self.close()
            raise

        opened.settimeout(self._timeout_s)
        return opened

    def _log_in(self, through: socket.socket) -> None:
        talk = conversation(self._login)
        try:
            key, version, body = next(talk)
            while True:
                frame = encode_header(RequestHeader(key, version, 0, self._client_id)) + body
                through.sendall(len(frame).to_bytes(4, "big") + frame)
                key, version, body = talk.send(self._read_frame()[_CORRELATION_BYTES:])
        except StopIteration:
            return

    def _read_frame(self) -> memoryview:
        length = int.from_bytes(self._read(4), "big", signed=True)
        if not 0 < length <= _FRAME_BYTES_MAX:
            raise ProtocolViolation(
                f"{self}: a frame of {length} bytes; check that it is a Kafka port, and whether "
                "it has TLS"
            )
        return self._read(length)

    def _read(self, size: int) -> memoryview:
        if self._socket is None:
            raise ConnectionResetError("the connection was closed")
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = self._socket.recv_into(view[at:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            at += count
        return view

    def _broken(self, error: OSError) -> NoReturn:
        self.close()
        raise Unavailable(f"broker {self}: {error}") from error


def _send(through: socket.socket, buffers: list[Buffer]) -> None:
    """All of them, none copied: a record batch is a megabyte."""
    if isinstance(through, ssl.SSLSocket):
        for buffer in buffers:
            through.sendall(buffer)
        return
    sent = through.sendmsg(buffers)
    for buffer in buffers:
        if sent < len(buffer):
            through.sendall(memoryview(buffer)[sent:])
        sent = max(0, sent - len(buffer))
