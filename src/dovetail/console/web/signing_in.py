"""Signing in: one token for everybody who may; browsers get a cookie for it.

The cookie holds the time until which it is good and a seal over it, made with the token: every
broker that has the token accepts it, also after a restart, and none has to remember it. A new token
ends all of them. Tokens and seals are compared in constant time.

Wrong tokens are counted: after a handful in a minute no more are looked at, so that the audit log
and the processor are not at the mercy of whoever guesses.
"""

import hashlib
import hmac
from collections import deque

#: A working day; then the token is asked for again.
SESSION_S = 12 * 3600
#: Wrong tokens a minute. A person mistypes twice.
WRONG_MAX = 10
_WRONG_MS = 60_000.0

COOKIE = "dovetail_session"
_COOKIE_CHARACTERS_MAX = 200


class SignIn:
    """Judges tokens and cookies; without a token everybody is signed in."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"dovetail session\0" + self._token).digest()
        self._wrong_ms: deque[float] = deque()

    @property
    def required(self) -> bool:
        return bool(self._token)

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        return self.required and hmac.compare_digest(given.encode(), self._token)

    def throttled(self, *, now_ms: float) -> bool:
        """Whether so many wrong tokens came of late that none is looked at."""
        while self._wrong_ms and now_ms - self._wrong_ms[0] > _WRONG_MS:
            self._wrong_ms.popleft()
        return len(self._wrong_ms) >= WRONG_MAX

    def note_wrong(self, *, now_ms: float) -> None:
        """Counts a wrong token."""
        self._wrong_ms.append(now_ms)

    def seal(self, *, now_s: int) -> str:
        """The value of a cookie that is good from now on."""
        until = str(now_s + SESSION_S)
        return f"{until}.{self._seal_of(until)}"

    def is_sealed(self, cookie: str, *, now_s: int) -> bool:
        """Whether a cookie is one of ours, and still good."""
        until, _, seal = cookie[:_COOKIE_CHARACTERS_MAX].partition(".")
        if not self.required or not until.isascii() or not until.isdigit():
            return False
        sealed = hmac.compare_digest(seal.encode(), self._seal_of(until).encode())
        return sealed and now_s < int(until)

    def _seal_of(self, until: str) -> str:
        return hmac.new(self._key, until.encode(), hashlib.sha256).hexdigest()
