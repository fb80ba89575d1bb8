"""Foreign text: what comes from users and their libraries, made fit to be kept and shown (R6).

An exception may raise when it is asked for its text, and any text may hold NUL, which PostgreSQL
does not store, or half a character, which has no encoding. `described` and `readable` never raise.
"""


def readable(text: str) -> str:
    """The text with escapes for what cannot be sent or stored: half a character, and NUL."""
    return text.replace("\0", r"\x00").encode(errors="backslashreplace").decode()


def text_of(value: object) -> str:
    """`str(value)` as readable text, also if the object cannot say it."""
    try:
        return readable(str(value))
    except BaseException as broken:  # noqa: BLE001 - a foreign `__str__` may do anything
        return f"(its text cannot be read: {type(broken).__name__})"


def described(error: BaseException) -> str:
    """The class of an exception and its text, on one line where it has one."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
