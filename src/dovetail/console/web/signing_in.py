"""Signing in: one token for all operators; browsers get a cookie for it.

The cookie holds the time until which it is valid and a seal over it, made with the token: every
broker that has the token accepts it, even after a restart, and none has to remember it. A new token
ends all cookies. Tokens and seals are compared in constant time.

Wrong tokens are counted for each address, in a header as on the page: after a handful in a minute,
further ones are throttled and leave no line in the log. The right token always passes, or anybody
could lock its owner out; it is too long to be guessed.
"""

import hashlib
import hmac
from collections import OrderedDict
from http import HTTPStatus

from dovetail.console.web.errors import HttpRefusal
from dovetail.logging import get_logger

_log = get_logger("console")

#: A working day; then the token is asked for again.
SESSION_S = 12 * 3600
#: Wrong tokens a minute from one address. A person mistypes twice.
WRONG_MAX = 10
_WRONG_MS = 60_000.0
#: Addresses whose wrong tokens are counted; the one that began first is forgotten for one more.
_ADDRESSES_MAX = 10_000

COOKIE = "dovetail_session"
_COOKIE_CHARACTERS_MAX = 200


class SignIn:
    """Judges tokens and cookies; without a token everybody is signed in."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"dovetail session\0" + self._token).digest()
        #: By address: when its minute began, and the wrong tokens since.
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()

    @property
    def required(self) -> bool:
        return bool(self._token)

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        return self.required and hmac.compare_digest(given.encode(), self._token)

    def refuse(self, address: str, *, now_ms: float) -> HttpRefusal:
        """The answer to a wrong token from this address, which counts."""
        began_ms, count = self._wrong.get(address, (now_ms, 0))
        if now_ms - began_ms > _WRONG_MS:
            self._wrong.pop(address)
            began_ms, count = now_ms, 0
        self._wrong[address] = (began_ms, count + 1)
        if len(self._wrong) > _ADDRESSES_MAX:
            self._wrong.popitem(last=False)

        if count >= WRONG_MAX:
            return HttpRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"more than {WRONG_MAX} wrong tokens in a minute from {address}",
                headers={"retry-after": str(int(_WRONG_MS / 1000))},
            )
        _log.warning("a wrong token", peer=address)
        return HttpRefusal(
            HTTPStatus.UNAUTHORIZED,
            "this is not the token of the node; it is the setting http.token, or the first line "
            "of the file http.token_file",
            headers={"www-authenticate": "Bearer"},
        )

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
