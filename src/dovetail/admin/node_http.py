"""A node's HTTP: one GET, the typed answer, and errors that say what to do."""

import http.client
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dovetail.errors import NotFound, Refused, Unavailable, Unreachable

if TYPE_CHECKING:
    from dovetail.settings import Settings

Answer = TypeVar("Answer")

#: Largest answer that is read; the lists of a large cluster are a few MiB.
ANSWER_BYTES_MAX = 64 * 1024**2

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
    # The address is the user's own setting for his own node.
    url = node.url
    request = urllib.request.Request(f"{url}{path}")  # noqa: S310
    if node.token:
        request.add_header("Authorization", f"Bearer {node.token}")

    try:
        tls = ssl.create_default_context(cafile=node.ca or None) if url[:5] == "https" else None
        with urllib.request.urlopen(request, timeout=limit_s, context=tls) as said:  # noqa: S310
            return msgspec.json.decode(said.read(ANSWER_BYTES_MAX), type=answer)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 401:
            raise Refused(
                f"{url} requires a token: set http.token or http.token_file, for example by "
                "DOVETAIL_HTTP_TOKEN"
            ) from error
        if error.code == 404:
            raise NotFound(f"{url} does not serve {path}; is it an older version?") from error
        raise Unavailable(f"{url}{path} answers {error.code} {error.reason}") from error
    except (OSError, ValueError, msgspec.DecodeError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        why = str(getattr(reason, "strerror", None) or reason).lower()
        raise Unreachable(
            f"cannot reach {url}: {why} (http.host and http.port say where a node serves HTTP)"
        ) from error
