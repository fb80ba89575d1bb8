"""The console's own files: pages, modules and styles, from the package, with ETags.

Every page path gets the same document, whose modules read the address. Files are read on request
and cached by their time and size, so that a change while a node runs is seen. Nothing outside the
folder is reachable: a path is looked up among the existing files.
"""

import hashlib
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from dovetail.console.web.dispatch import problem_response
from dovetail.console.web.errors import HttpRefusal

FOLDER = Path(__file__).parents[1] / "static"
#: The first parts of addresses that are pages.
ROOTS = frozenset(
    {
        "",
        "access",
        "audit",
        "connections",
        "dead",
        "groups",
        "messages",
        "outbox",
        "overview",
        "pipelines",
        "sign-in",
        "streams",
        "timelines",
        "topics",
    }
)
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


class Pages:
    """Serves a folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._kept: dict[Path, tuple[int, int, bytes, str]] = {}

    async def page(self, request: Request) -> Response:
        """The document of a page path."""
        if request.url.path.split("/")[1] not in ROOTS:
            return _missing(request.url.path)
        return self._file(self._folder / "index.html", request)

    async def static(self, request: Request) -> Response:
        """A file below the folder."""
        path = self._folder / request.path_params["path"]
        try:
            inside = path.resolve().is_relative_to(self._folder.resolve())
            if inside and path.suffix in _TYPES and path.is_file():
                return self._file(path, request)
        except (OSError, ValueError):
            # A name that no file can have: too long, or with a zero in it.
            pass
        return _missing(request.url.path)

    def _file(self, path: Path, request: Request) -> Response:
        seen = path.stat()
        kept = self._kept.get(path)
        if kept is None or kept[:2] != (seen.st_mtime_ns, seen.st_size):
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            kept = self._kept[path] = (seen.st_mtime_ns, seen.st_size, content, tag)
        headers = {"etag": kept[3], "cache-control": "no-cache"}
        if kept[3] in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(kept[2], media_type=_TYPES[path.suffix], headers=headers)


def _missing(path: str) -> Response:
    return problem_response(
        HttpRefusal(HTTPStatus.NOT_FOUND, f"there is nothing at {path[:200]}; /docs lists the API")
    )
