"""Which messages or dead letters an operator means: a filter, and its match; pure."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from dovetail.errors import InvalidInput
from dovetail.timeline.message import REASON_CHARACTERS_MAX, Shown, TimeMs, decode_headers

#: What can be done to those that fit; `preview` counts them.
SelectAction = Literal["preview", "cancel", "move", "replay", "drop"]
#: Ids that an answer has, for people to look at.
SHOWN_MAX: Final = 100
#: Longest text of a filter: keys are shorter, and so are names of headers that people write.
_TEXT_MAX = 1_024


class Where(Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages: all that is said must be so. Nothing said is every one.

    `header` alone: it has such a header; with `header_value`, one of this value. `reason`: it is
    part of why a dead letter died. `older_ms`: due, or dead, at least so long ago.
    """

    key_prefix: Annotated[str, Meta(max_length=_TEXT_MAX)] = ""
    header: Annotated[str, Meta(max_length=_TEXT_MAX)] = ""
    header_value: Annotated[bytes, Meta(max_length=_TEXT_MAX)] | None = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    older_ms: TimeMs = 0

    @property
    def is_empty(self) -> bool:
        """Whether it means every one."""
        return self == Where()

    def check(self, *, dead: bool) -> None:
        """Raises `InvalidInput` for what can fit nothing."""
        if self.reason and not dead:
            raise InvalidInput("only dead letters have a reason")
        if self.header_value is not None and not self.header:
            raise InvalidInput("the value of a header needs its name")

    def fits(self, shown: Shown, *, now_ms: int) -> bool:
        """Whether a message or dead letter is meant."""
        if self.key_prefix and not (shown.key or "").startswith(self.key_prefix):
            return False
        if self.reason not in shown.reason:
            return False
        since_ms = shown.died_ms or shown.due_ms
        if self.older_ms and since_ms > now_ms - self.older_ms:
            return False
        return not self.header or self._has_header(shown)

    def _has_header(self, shown: Shown) -> bool:
        try:
            headers = decode_headers(shown.headers)
        except InvalidInput:
            return False  # Another client wrote them.
        wanted = self.header_value
        return any(n == self.header and wanted in (None, value) for n, value in headers)
