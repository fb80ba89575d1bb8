"""Foreign text and bytes for property tests (R6): what users, libraries and other systems give.

`FOREIGN_EXAMPLES` is how many of them each property is tried with.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, example, settings
from hypothesis import strategies as st

T = TypeVar("T", bound=Callable[..., Any])

EXAMPLES = int(os.environ.get("FOREIGN_EXAMPLES", "20"))

#: Of every property here: the servers are shared, and an example is cheap.
foreign = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 20,
    # A shrunk example costs minutes on a server; the values are small and telling as they are.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)

#: What has broken something somewhere: NUL, half a character, a character that some databases
#: take for another, and what terminals and logs obey.
NASTY_TEXTS = (
    "",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "\udcff",
    "\U0001f600",
    "é",
    "e\u0301",
    "ß",
    "İ",
    " a ",
    "a\nb",
    "\x1b[31m",
    "..",
    "/",
    "%00",
    "a" * 255,
    "é" * 255,
    "a" * 256,
    "a" * 70_000,
    "\ufeff",
    "\uffff",
    "null",
    "None",
)

texts = st.sampled_from(NASTY_TEXTS) | st.text(
    st.characters(codec=None, categories=None), max_size=300
)

NASTY_BYTES = (b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xc3", b"a" * 4096, b"a" * 4097, bytes(256))
datas = st.sampled_from(NASTY_BYTES) | st.binary(max_size=300)


#: Of these, what is refused or broke something in nearly every entry.
WORST = ("", "\0", "a\0b", "\ud800", "a\udfffb", "\udcff", "a" * 70_000)


def each_of(values: Sequence[str], **plain: Any) -> Callable[[T], T]:
    """Tries every one of `values` in the place of each argument, the others as they are given."""

    def decorate(test: T) -> T:
        for name in [name for name, value in plain.items() if isinstance(value, str)]:
            for value in values:
                test = example(**{**plain, name: value})(test)
        return test

    return decorate


class BrokenText(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def error_of(text: str) -> Exception:
    """An exception with this text, or one without any."""
    return BrokenText() if text == "None" else ValueError(text)
