"""Logging: structured lines on the standard library's logging.

A line is a fixed message and named fields, never values pasted into the message, so that lines of
one kind can be counted and searched:

    log = get_logger("kafka")
    log.warning("request refused", client="10.0.0.7:41022", api_key=99)

`text` is for a person at a terminal; `json` is one object a line. `auto` chooses text on a terminal
and JSON elsewhere: what no person reads, a program does, and a program should not have to guess
where a value ends.

Data from outsiders can end up in a field. Values are quoted and their control characters escaped in
both formats, so nobody can forge a second line; and lines that an outsider can trigger go through
`RateLimitedLog`, so nobody can fill the disk with them.
"""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TextIO

from dovetail.clock import Clock
from dovetail.foreign import text_of, traceback_of

ROOT_NAME = "dovetail"

#: Longest field written. A forged client id can be 32 KiB; a line should still be a line.
FIELD_CHARACTERS_MAX = 500

#: Kinds that one `RateLimitedLog` keeps apart. Kinds are words in our code, so 64 is ample; it
#: bounds the memory should a caller ever derive a kind from input.
KINDS_MAX = 64

#: What shares one second once there are too many kinds.
_KIND_OTHER = "other"

_FIELDS_ATTRIBUTE = "dovetail_fields"
_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_COLOUR_BY_LEVEL = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


class Logger:
    """The log of one component; keyword arguments become fields."""

    __slots__ = ("_logger",)

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(f"{ROOT_NAME}.{component}")

    def debug(self, message: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        self._write(logging.ERROR, message, fields)

    def exception(
        self, message: str, /, raised: BaseException | None = None, **fields: object
    ) -> None:
        """An error line with the traceback of `raised`, or of the exception being handled."""
        self._write(logging.ERROR, message, fields, traceback_of=raised or True)

    def _write(
        self,
        level: int,
        message: str,
        fields: dict[str, object],
        *,
        traceback_of: BaseException | bool = False,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS_ATTRIBUTE: fields}
            self._logger.log(level, "%s", message, extra=extra, exc_info=traceback_of)


def get_logger(component: str) -> Logger:
    """The log of `component`, such as "kafka" or "ledger"."""
    return Logger(component)


def configure_logging(
    *,
    format: Literal["auto", "text", "json"] = "auto",  # noqa: A002 - the setting's own name
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> None:
    """Sends all log lines of this process to `stream` (standard error), in one format.

    Libraries are heard from `warning` on, whatever the level of our own lines.
    """
    stream = sys.stderr if stream is None else stream
    on_terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if format == "text" or (format == "auto" and on_terminal):
        handler.setFormatter(TextFormatter(colour=on_terminal))
    else:
        handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT_NAME).setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """`12:04:11.250 warning kafka  request refused  client=10.0.0.7:41022 api_key=99`."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        time_text = moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
        level = record.levelname.lower()
        message = _escape(record.getMessage())
        fields = [
            f"{self._paint(name + '=', _DIM)}{_text_value(value)}"
            for name, value in _fields_of(record).items()
        ]
        head = (
            f"{self._paint(time_text, _DIM)} "
            f"{self._paint(f'{level:<7}', _COLOUR_BY_LEVEL.get(record.levelno, ''))} "
            f"{_component_of(record):<12} {message}"
        )
        line = "  ".join([head, " ".join(fields)]) if fields else head
        if record.exc_info:
            line += "\n" + _traceback_in(record.exc_info)
        return line

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour and colour else text


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, component, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "component": _component_of(record),
            "message": record.getMessage(),
        }
        for name, value in _fields_of(record).items():
            # A field never replaces what every line has.
            line[name if name not in line else f"field_{name}"] = _json_value(value)
        if record.exc_info:
            line["traceback"] = _traceback_in(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def _traceback_in(given: object) -> str:
    """Also of an exception that cannot be formatted, where the standard one would lose the line."""
    error = given[1] if isinstance(given, tuple) else None
    return "" if error is None else traceback_of(error).rstrip("\n")


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, _FIELDS_ATTRIBUTE, {})
    return fields


def _component_of(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{ROOT_NAME}.")


def _text_value(value: object) -> str:
    text = _shorten(text_of(value))
    plain = text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain and text else json.dumps(text)


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return _shorten(text_of(value))


def _shorten(text: str) -> str:
    if len(text) <= FIELD_CHARACTERS_MAX:
        return text
    return text[:FIELD_CHARACTERS_MAX] + f"... ({len(text)} characters)"


def _escape(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]


@dataclass(slots=True)
class _Window:
    begin_ms: float
    written: int = 0
    suppressed: int = 0


class RateLimit:
    """Decides which lines of a kind may be written: at most so many in each second.

    A kind's second begins with its first line after the last second ended.
    """

    def __init__(self, *, lines_per_second_max: int) -> None:
        self._lines_per_second_max = lines_per_second_max
        self._windows: dict[str, _Window] = {}

    def admit(self, kind: str, *, now_ms: float) -> tuple[bool, int]:
        """Whether to write the line, and how many before it were suppressed and not reported."""
        if kind not in self._windows and len(self._windows) >= KINDS_MAX:
            kind = _KIND_OTHER
        window = self._windows.get(kind)
        unreported = 0
        if window is None or now_ms - window.begin_ms >= 1000.0:
            unreported = window.suppressed if window else 0
            window = self._windows[kind] = _Window(now_ms)
        if window.written >= self._lines_per_second_max:
            window.suppressed += 1
            return False, 0
        window.written += 1
        return True, unreported

    def settle(self, *, now_ms: float | None = None) -> dict[str, int]:
        """The kinds whose second is over, with lines suppressed and not yet reported; forgets them.

        Without `now_ms`, every second counts as over, as at the end of the process.
        """
        over = {
            kind: window.suppressed
            for kind, window in self._windows.items()
            if now_ms is None or now_ms - window.begin_ms >= 1000.0
        }
        for kind in over:
            del self._windows[kind]
        return {kind: suppressed for kind, suppressed in over.items() if suppressed}


class RateLimitedLog:
    """Warnings that an outsider can trigger: a few a second per kind, the rest counted.

    The number suppressed is reported with the next line of the kind, or by `flush`, which a node
    calls in its housekeeping and once at its end.
    """

    def __init__(self, logger: Logger, clock: Clock, *, lines_per_second_max: int = 5) -> None:
        self._logger = logger
        self._clock = clock
        self._limit = RateLimit(lines_per_second_max=lines_per_second_max)

    def report(self, kind: str, message: str, /, **fields: object) -> None:
        """Writes the line, or counts it if its kind has had its share of this second."""
        admitted, unreported = self._limit.admit(kind, now_ms=self._clock.monotonic_ms())
        if unreported:
            self._report_suppressed(kind, unreported)
        if admitted:
            self._logger.warning(message, **{**fields, "kind": kind})

    def flush(self, *, final: bool = False) -> None:
        """Reports what was suppressed in seconds that are over, or at the end in all."""
        now_ms = None if final else self._clock.monotonic_ms()
        for kind, suppressed in self._limit.settle(now_ms=now_ms).items():
            self._report_suppressed(kind, suppressed)

    def _report_suppressed(self, kind: str, suppressed: int) -> None:
        self._logger.warning("lines suppressed", kind=kind, suppressed=suppressed)
