"""A node's HTTP, as commands ask it: one GET, the answer as JSON, errors that say what to do."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.cli.outcome import Unreachable
from dovetail.errors import NotFound, Refused, Unavailable

if TYPE_CHECKING:
    from dovetail.settings import Settings

#: Largest answer that is read; the lists of a large cluster are a few MiB.
ANSWER_BYTES_MAX = 64 * 1024**2

#: A node that listens everywhere is asked here.
_LOCAL = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class NodeHttp:
    """Where a node is found over HTTP, and how to come in."""

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


def get_json(node: NodeHttp, path: str, *, limit_s: float) -> Any:
    """What the node answers.

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
        with urllib.request.urlopen(request, timeout=limit_s, context=tls) as answer:  # noqa: S310
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 401:
            raise Refused(
                f"{url} wants its token: set http.token or http.token_file, for example by "
                "DOVETAIL_HTTP_TOKEN"
            ) from error
        if error.code == 404:
            raise NotFound(f"{url} does not serve {path}; is it an older version?") from error
        raise Unavailable(f"{url}{path} answers {error.code} {error.reason}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        said = str(getattr(reason, "strerror", None) or reason).lower()
        raise Unreachable(
            f"{url} does not answer: {said} (http.host and http.port say where it is)"
        ) from error
