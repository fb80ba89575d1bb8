"""What drivers report of their pipelines, read from the topic of reports."""

import json
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer, TopicPartition

from dovetail.cli.client import call, client_config, connect, topics_of
from dovetail.teams.report import (
    COLUMNS,
    SILENT_S_MAX,
    TOPIC,
    newest,
    rows_of,
    shown_state,
)

if TYPE_CHECKING:
    from types import TracebackType

    from dovetail.cli.options import Target

_POLL_S = 0.2
_AT_ONCE = 10_000


class Reports:
    """The reports of one pipeline, or of all; they can be read on and on."""

    def __init__(self, target: "Target", name: str | None) -> None:
        """Raises `Unreachable`."""
        self._target, self._name = target, name
        self._found: list[tuple[bytes | None, bytes | None]] = []
        self._consumer: Consumer | None = None
        if TOPIC in topics_of(connect(target), target):
            self._consumer = Consumer(
                client_config(
                    target,
                    **{
                        "group.id": f"dovetail-status-{uuid.uuid4().hex}",
                        "enable.auto.commit": False,
                    },
                )
            )
            self._read_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def newest(self) -> list[dict[str, Any]]:
        """The reports that count, as they were read last."""
        found = newest(self._found)
        return [one for one in found if self._name in (None, one["pipeline"])]

    def print(self) -> None:
        """A table for each pipeline, and a line for each driver that waits."""
        from dovetail.cli.output import note, print_table

        documents = self.newest()
        if not documents:
            note("no driver has reported within a day (dovetail pipeline run MODULE:PIPELINE)")
        now_ms = time.time_ns() // 1_000_000
        for one in documents:
            state = shown_state(one, now_ms=now_ms)
            term = f", term {one['term']}" if one["term"] else ""
            title = f"{one['pipeline']}: {state}{term} ({one['driver']})"
            if one["state"] == "waiting for election":
                note(title)
            else:
                print_table(COLUMNS, rows_of(one), title=title)

    def watch(self, every_s: float, *, as_json: bool) -> None:
        """Shows the newest reports until it is interrupted."""
        if as_json or not sys.stdout.isatty():
            while True:
                sys.stdout.write(json.dumps(self.newest()) + "\n")
                sys.stdout.flush()
                self._read_on(every_s)
        from rich.console import Group
        from rich.live import Live

        from dovetail.cli.commands.pipeline_run import live_table
        from dovetail.cli.output import answers

        with Live(console=answers(), refresh_per_second=2) as shown:
            while True:
                now_ms = time.time_ns() // 1_000_000
                tables = [
                    live_table(one, state=shown_state(one, now_ms=now_ms)) for one in self.newest()
                ]
                shown.update(Group(*tables))
                self._read_on(every_s)

    def _read_back(self) -> None:
        """Who is not silent has reported lately; all is read only where that is not enough."""
        lately_ms = int((time.time() - 2 * SILENT_S_MAX) * 1000)
        self._read_from(lately_ms)
        if self._name is None or not self.newest():
            self._read_from(0)

    def _read_from(self, at_ms: int) -> None:
        assert self._consumer is not None
        consumer, timeout_s = self._consumer, self._target.timeout_s
        doing = "reading what drivers report"
        place = TopicPartition(TOPIC, 0, at_ms)
        [start] = call(
            doing, self._target, lambda: consumer.offsets_for_times([place], timeout=timeout_s)
        )
        low, end = call(
            doing, self._target, lambda: consumer.get_watermark_offsets(place, timeout=timeout_s)
        )
        first = max(low, start.offset if start.offset >= 0 else end)
        consumer.assign([TopicPartition(TOPIC, 0, first)])
        self._found = []
        deadline = time.monotonic() + timeout_s
        while first < end and time.monotonic() < deadline:
            for message in consumer.consume(_AT_ONCE, _POLL_S):
                if message.error() is None:
                    self._found.append((message.key(), message.value()))
                    first = (message.offset() or 0) + 1

    def _read_on(self, for_s: float) -> None:
        """Reads what comes within some time; all there is, is what was newest before and that."""
        if self._consumer is None:
            time.sleep(for_s)
            return
        kept = dict(self._found)
        for message in self._consumer.consume(_AT_ONCE, for_s):
            if message.error() is None:
                kept[message.key()] = message.value()
        self._found = list(kept.items())
