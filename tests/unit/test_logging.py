"""Logging: formats, escaping, and the limit on what outsiders can trigger."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from dovetail.clock import ManualClock
from dovetail.logging import (
    FIELD_CHARACTERS_MAX,
    KINDS_MAX,
    RateLimit,
    RateLimitedLog,
    configure_logging,
    get_logger,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("dovetail")
    before = (root.handlers, root.level, ours.level)
    yield
    root.handlers = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def configured(
    stream: io.StringIO, log_format: Literal["auto", "text", "json"] = "json"
) -> io.StringIO:
    configure_logging(format=log_format, level="info", stream=stream)
    return stream


def test_json_lines_hold_the_fields() -> None:
    """U6: with `json`, each line is one object with time, level, component, message, fields."""
    stream = configured(io.StringIO())
    get_logger("kafka").warning("request refused", client="10.0.0.7:1", api_key=99, message="x")
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "component": "kafka",
        "message": "request refused",
        "client": "10.0.0.7:1",
        "api_key": 99,
        "field_message": "x",
    }


@pytest.mark.parametrize(("stream", "is_json"), [(Terminal(), False), (io.StringIO(), True)])
def test_auto_is_text_on_a_terminal_and_json_elsewhere(stream: io.StringIO, is_json: bool) -> None:
    """U7: people get text, programs JSON, without a setting."""
    configured(stream, "auto")
    get_logger("log").info("started", partitions=3)
    assert stream.getvalue().startswith("{") == is_json
    assert "started" in stream.getvalue()


def test_text_has_no_colour_in_a_file() -> None:
    """U7: colour codes go to terminals only."""
    stream = configured(io.StringIO(), "text")
    get_logger("log").info("ledger opened", ledger=17, topic="a b")
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().endswith('ledger opened  ledger=17 topic="a b"\n')


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_outsiders_cannot_forge_a_line(log_format: Literal["text", "json"]) -> None:
    """R3: control characters in a field are escaped, and a long field is cut."""
    stream = configured(io.StringIO(), log_format)
    evil = "x\n12:00:00 info dovetail all is well\x1b[2J" + "y" * 10_000
    get_logger("kafka").warning("request refused", client_id=evil)
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue()) < FIELD_CHARACTERS_MAX + 500


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_exceptions_come_with_their_traceback(log_format: Literal["text", "json"]) -> None:
    """U7, R6: an unexpected error says where it was, and any file takes what it says."""
    stream = configured(io.StringIO(), log_format)
    try:
        raise RuntimeError("broken 42 \udc80")
    except RuntimeError:
        get_logger("broker").exception("task failed")
    assert "broken 42" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert r"\udc80" in stream.getvalue().encode().decode()


def test_libraries_are_heard_from_warning_on() -> None:
    """U7: a library's chatter does not hide our own lines."""
    stream = configured(io.StringIO())
    logging.getLogger("uvicorn.error").info("chatter")
    logging.getLogger("uvicorn.error").warning("trouble")
    get_logger("log").debug("detail")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["component"], line["message"]) for line in lines] == [
        ("uvicorn.error", "trouble")
    ]


def lines_of(stream: io.StringIO) -> list[tuple[str, object]]:
    parsed = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(line["message"], line.get("suppressed")) for line in parsed]


def test_a_flood_is_a_few_lines_and_a_number() -> None:
    """R3: lines an outsider triggers are limited per kind and second; the rest are counted."""
    stream, clock = configured(io.StringIO()), ManualClock()
    log = RateLimitedLog(get_logger("kafka"), clock, lines_per_second_max=2)
    for _ in range(1000):
        log.report("garbage", "no request")
    log.report("oversize", "too large")
    assert lines_of(stream) == [("no request", None), ("no request", None), ("too large", None)]
    clock.advance(1000)
    log.report("garbage", "no request")
    assert lines_of(stream)[3:] == [("lines suppressed", 998), ("no request", None)]


def test_what_was_suppressed_is_told_even_if_the_flood_ends() -> None:
    """R3: the number suppressed is never lost."""
    stream, clock = configured(io.StringIO()), ManualClock()
    log = RateLimitedLog(get_logger("kafka"), clock, lines_per_second_max=1)
    log.report("garbage", "no request")
    log.report("garbage", "no request")
    log.flush()
    assert len(lines_of(stream)) == 1
    clock.advance(1000)
    log.flush()
    log.flush()
    assert lines_of(stream)[1:] == [("lines suppressed", 1)]
    log.report("garbage", "no request")
    log.report("garbage", "no request")
    log.flush(final=True)
    assert lines_of(stream)[-1] == ("lines suppressed", 1)


def test_kinds_are_bounded() -> None:
    """R3: many kinds take no more memory than a few."""
    limit = RateLimit(lines_per_second_max=1)
    admitted = [limit.admit(str(number), now_ms=0.0)[0] for number in range(10_000)]
    assert sum(admitted) == KINDS_MAX + 1
    assert sum(limit.settle().values()) == 10_000 - KINDS_MAX - 1
