"""Makes foreign text safe for a terminal: shown, never interpreted.

A key, a body, an id or a reason is whatever somebody sent. Printed raw, an escape sequence in it
could move the cursor, change the title or hide a line.
"""

import json
import re

#: JSON escapes those below 0x20. Terminals obey these too; half a surrogate cannot be encoded.
_RAW_IN_JSON = re.compile("[\x7f-\x9f\ud800-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    """The text with every character that is not printable as an escape, except those of `keep`."""
    return "".join(
        character if character.isprintable() or character in keep else _escaped(character)
        for character in text
    )


def json_text(value: object, *, indent: int | None = None) -> str:
    """The value as JSON in which no character commands a terminal."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
