"""Certificate files that are read again when they change, so that a renewal needs no restart.

A connection keeps the certificate of its handshake; the next handshake gets the new one. Files that
do not fit together, as in the middle of a renewal, change nothing: the old ones serve until a later
look finds files that do. Each look tries again, even if the files have not changed since: the
permission to read them may have, and a process that was out of file handles may have one again.

Not here: revocation. An authority that is removed from its file is trusted until a restart.
"""

import ssl
from collections.abc import Iterable
from pathlib import Path

from dovetail.logging import get_logger

_log = get_logger("access")

#: What tells that a file was replaced or rewritten: its inode, its size, when it was changed.
_Seen = tuple[tuple[int, int, int], ...]


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """The context shows this certificate. Raises `OSError`; errors of TLS are among these.

    A key with a pass phrase is refused: OpenSSL would ask for it at the terminal, and the process
    stand still until somebody answers.
    """
    context.load_cert_chain(certificate, key, _no_pass_phrase)


def _no_pass_phrase() -> str:
    raise OSError("the key is protected by a pass phrase; give one that is not")


class TlsFiles:
    """A certificate, its key and whom to trust, and the contexts that were made of them."""

    def __init__(self, certificate: str, key: str, authority: str = "") -> None:
        """Remembers how the files are now: make it before the contexts."""
        self._certificate = certificate
        self._key = key
        self._authority = authority
        self._seen = self._look_at_files()
        #: Files that could not be used, of which the log says so already.
        self._refused: _Seen | None = None
        self._contexts: list[ssl.SSLContext] = []

    def keep(self, contexts: Iterable[ssl.SSLContext | None]) -> None:
        """These get what the files say from now on."""
        self._contexts += [context for context in contexts if context is not None]

    def look(self) -> None:
        """Reads the files again if they have changed; cheap if not."""
        now = self._look_at_files()
        if now is None or now == self._seen:
            return
        try:
            # A context that fails half-way has lost its old certificate, so another one is first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *self._contexts):
                load_certificate(context, self._certificate, self._key)
                if self._authority:
                    context.load_verify_locations(self._authority)
        except OSError as error:
            if now != self._refused:
                _log.warning(
                    "new certificates cannot be used yet; the old ones serve",
                    files=f"{self._certificate}, {self._key}, {self._authority}",
                    error=str(error),
                )
            self._refused = now
        else:
            self._seen, self._refused = now, None
            _log.info("new certificates", file=self._certificate)

    def _look_at_files(self) -> _Seen | None:
        """None while one of them is not there, as in the middle of a renewal."""
        names = [name for name in (self._certificate, self._key, self._authority) if name]
        try:
            found = [Path(name).stat() for name in names]
        except OSError:
            return None
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found)
