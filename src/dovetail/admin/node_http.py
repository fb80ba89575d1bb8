"""A node's HTTP: one request, the typed answer or a file, and errors that say what to do."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dovetail.errors import NotFound, Refused, Unavailable, Unreachable

if TYPE_CHECKING:
    from dovetail.settings import Settings

Answer = TypeVar("Answer")

#: Largest answer that is read; the lists of a large cluster are a few MiB.
ANSWER_BYTES_MAX = 64 * 1024**2

#: What is read at once of an answer that is handed on.
_PIECE_BYTES = 1024 * 1024

#: A node that listens everywhere is asked here.
_LOCAL = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class NodeHttp:
    """Where a node serves HTTP, and the token that it wants."""

    url: str
    token: str = field(default="", repr=False)
    #: File with the authority of its certificate; empty: the system's.
    ca: str = ""

    @classmethod
    def of(cls, settings: "Settings", url: str | None = None) -> "NodeHttp":
        """The node that the settings describe, from its own machine; or the one at `url`.

        Raises `InvalidSetting`.
        """
        http = settings.http
        host = _LOCAL.get(http.host, http.host)
        scheme = "https" if http.tls_certificate else "http"
        here = (
            f"{scheme}://[{host}]:{http.port}" if ":" in host else f"{scheme}://{host}:{http.port}"
        )
        return cls(url or here, http.secret(), settings.client.tls_ca)

    @classmethod
    def beside(
        cls, settings: "Settings", *, named: bool, url: str | None = None
    ) -> "NodeHttp | None":
        """The HTTP of the node that is asked over Kafka's protocol; None if nobody says where.

        `named`: somebody chose its address. What happens to listen at the default address for HTTP
        need not belong to that cluster then.
        """
        places = {settings.origin(f"http.{field}").place for field in ("host", "port")}
        if url is None and (not settings.http.enabled or (named and places == {"default"})):
            return None
        return cls.of(settings, url)


def get(node: NodeHttp, path: str, answer: type[Answer], *, limit_s: float) -> Answer:
    """The node's answer to a GET.

    Raises `Unreachable` if nobody answers, `Refused` if it wants a token, `NotFound` if it does
    not serve the path, `Unavailable` for every other failure.
    """
    with _errors_of(node, path), _asked(node, path, "GET", limit_s) as said:
        return msgspec.json.decode(said.read(ANSWER_BYTES_MAX), type=answer)


def download(node: NodeHttp, path: str, write: Callable[[bytes], None], *, limit_s: float) -> None:
    """Hands the answer to a POST on, piece by piece; `limit_s` is for each of them.

    Raises as `get`, and what `write` raises as it is.
    """
    with _errors_of(node, path):
        said = _asked(node, path, "POST", limit_s)
    with said:
        while True:
            with _errors_of(node, path):
                piece = said.read(_PIECE_BYTES)
            if not piece:
                return
            write(piece)


def _asked(node: NodeHttp, path: str, method: str, limit_s: float) -> "http.client.HTTPResponse":
    # The address is the user's own setting for his own node.
    request = urllib.request.Request(f"{node.url}{path}", method=method)  # noqa: S310
    if node.token:
        request.add_header("Authorization", f"Bearer {node.token}")
    secure = node.url.startswith("https")
    tls = ssl.create_default_context(cafile=node.ca or None) if secure else None
    said: http.client.HTTPResponse = urllib.request.urlopen(  # noqa: S310
        request, timeout=limit_s, context=tls
    )
    return said


@contextmanager
def _errors_of(node: NodeHttp, path: str) -> Iterator[None]:
    """Turns what goes wrong inside into errors of ours."""
    url = node.url
    try:
        yield
    except urllib.error.HTTPError as error:
        said = _told(error)
        error.close()
        if error.code == 401:
            raise Refused(
                f"{url} requires a token: set http.token or http.token_file, for example by "
                "DOVETAIL_HTTP_TOKEN"
            ) from error
        if error.code == 404:
            raise NotFound(
                said or f"{url} does not serve {path}; is it an older version?"
            ) from error
        why = said or f"answers {error.code} {error.reason}"
        raise Unavailable(f"{url}{path}: {why}") from error
    except (OSError, ValueError, msgspec.DecodeError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        why = str(getattr(reason, "strerror", None) or reason).lower()
        raise Unreachable(
            f"cannot reach {url}: {why} (http.host and http.port say where a node serves HTTP)"
        ) from error


class _Said(msgspec.Struct):
    message: str


class _Problem(msgspec.Struct):
    error: _Said


def _told(error: urllib.error.HTTPError) -> str:
    """What the node says about it; empty if it says nothing that can be read."""
    try:
        return msgspec.json.decode(error.read(_PIECE_BYTES), type=_Problem).error.message
    except (OSError, ValueError, msgspec.DecodeError, http.client.HTTPException):
        return ""
