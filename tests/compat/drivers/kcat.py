"""kcat, the command line tool on librdkafka: one process for each call.

kcat takes one key delimiter and one set of headers for a whole run, so messages are sent in runs
of equal kind. Its JSON output is not checked for UTF-8: it carries raw bytes, read here as Latin-1.
"""

import itertools
import json
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.compat.drivers import base

#: Byte strings that no test message contains.
KEY_END = "<|key|>"
MESSAGE_END = "<|end|>"

#: What kcat writes for a protocol error, and the protocol's name for it.
NAMES = {
    "Unknown topic or partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "Local: Unknown topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "Message size too large": "MESSAGE_TOO_LARGE",
    "Offset out of range": "OFFSET_OUT_OF_RANGE",
}
ASSIGNED = re.compile(r"rebalanced \(memberid [^)]*\): (assigned|revoked): ?(.*)$")
PARTITION = re.compile(r"\[(\d+)\]")


def options(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]


def raise_own_error(text: str) -> None:
    for part, name in NAMES.items():
        if part in text:
            raise base.ClientError(name, text)
    raise base.ClientError("UNKNOWN", text)


def record_of(line: bytes) -> base.Record:
    view = json.loads(line.decode("latin-1"))

    def raw(text: str | None) -> bytes | None:
        return None if text is None else text.encode("latin-1")

    flat = view.get("headers") or []
    headers: base.Headers = tuple(
        (name, raw(value)) for name, value in zip(flat[::2], flat[1::2], strict=True)
    )
    key, value = raw(view["key"]), raw(view["payload"])
    return base.Record(view["partition"], view["offset"], view["ts"], key, value, headers)


class KcatMember(base.Member):
    """A kcat process in group mode; it commits by itself, and once more when it ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self._records: list[base.Record] = []
        self._owned: frozenset[int] = frozenset()
        self._log: list[str] = []
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._threads = [
            threading.Thread(target=self._read_records, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"KcatMember(owns {sorted(self._owned)}, log {self._log})"

    def _read_records(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._records.append(record_of(line))

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self._log.append(line)
            match = ASSIGNED.search(line)
            if match:
                owned = match[1] == "assigned"
                parts = frozenset(int(part) for part in PARTITION.findall(match[2]))
                self._owned = parts if owned else frozenset()

    def partitions(self) -> frozenset[int]:
        assert self._process.poll() is None, self._log
        return self._owned

    def take(self) -> list[base.Record]:
        taken = self._records[:]
        del self._records[: len(taken)]
        return taken

    def _end(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(base.CALL_SECONDS_MAX)
        for thread in self._threads:
            thread.join(base.CALL_SECONDS_MAX)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def close(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End without a word to the group."""
        self._end(signal.SIGKILL)


class KcatDriver(base.Driver):
    def _run(
        self, *words: str, stdin: bytes = b"", timeout_s: float = base.CALL_SECONDS_MAX
    ) -> bytes:
        done = subprocess.run(
            ["kcat", "-b", self.bootstrap, *words],
            input=stdin,
            capture_output=True,
            timeout=timeout_s + 5,
            check=False,
        )
        complaint = done.stderr.decode(errors="replace")
        if done.returncode != 0 or "Delivery failed" in complaint:
            raise_own_error(complaint)
        return done.stdout

    def send(self, sending: base.Sending) -> None:
        settings = {
            "acks": "all",
            "enable.idempotence": str(sending.idempotent).lower(),
            "message.max.bytes": base.REQUEST_BYTES_MAX,
            "message.timeout.ms": sending.timeout_ms,
            "topic.metadata.propagation.max.ms": sending.timeout_ms // 2,
        }

        def kind(message: base.Message) -> tuple[Any, ...]:
            keyed = message.key is not None
            return message.partition, message.headers, keyed, message.value is None

        for (partition, headers, keyed, empty), run in itertools.groupby(sending.messages, kind):
            words = ["-P", "-E", "-t", sending.topic, "-p", str(partition), "-D", MESSAGE_END]
            words += [*options(settings)] + (
                [] if sending.codec == "none" else ["-z", sending.codec]
            )
            for name, value in headers:
                words += ["-H", name if value is None else f"{name}={value.decode()}"]
            words += (["-K", KEY_END] if keyed else []) + (["-Z"] if empty else [])
            parts = [
                (message.key + KEY_END.encode() if message.key is not None else b"")
                + (message.value or b"")
                for message in run
            ]
            stdin = MESSAGE_END.encode().join(parts)
            self._run(*words, stdin=stdin, timeout_s=sending.timeout_s)

    def fetch(self, reading: base.Reading) -> list[base.Record]:
        settings = {
            "fetch.wait.max.ms": base.FETCH_WAIT_MS_MAX,
            "topic.auto.offset.reset": {"none": "error"}.get(reading.reset, reading.reset),
        }
        position = "beginning" if reading.start is None else str(reading.start)
        words = ["-C", "-t", reading.topic, "-p", str(reading.partition), "-o", position]
        output = self._run(*words, "-c", str(reading.count), "-J", "-q", *options(settings))
        return [record_of(line) for line in output.splitlines()]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        output = self._run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}").decode()
        found = int(output.rsplit("offset ", maxsplit=1)[1])
        return found if found >= 0 else None

    def _group_words(self, group: str, topic: str, *words: str) -> list[str]:
        settings = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": base.SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": base.HEARTBEAT_INTERVAL_MS,
            "fetch.wait.max.ms": base.FETCH_WAIT_MS_MAX,
        }
        return ["-G", group, "-J", "-u", *words, *options(settings), topic]

    def member(self, group: str, topic: str, *, instance: str | None = None) -> KcatMember:
        assert instance is None, "static members are not driven through kcat"
        return KcatMember(["kcat", "-b", self.bootstrap, *self._group_words(group, topic)])

    def consume_group(self, group: str, topic: str, count: int) -> list[base.Record]:
        output = self._run(*self._group_words(group, topic, "-c", str(count), "-q"))
        return [record_of(line) for line in output.splitlines()]

    def _metadata(self) -> Any:
        return json.loads(self._run("-L", "-J"))

    def topics(self) -> Mapping[str, int]:
        return {view["topic"]: len(view["partitions"]) for view in self._metadata()["topics"]}

    def cluster(self) -> base.ClusterView:
        view = self._metadata()
        addresses = frozenset(broker["name"] for broker in view["brokers"])
        return base.ClusterView(addresses, view["controllerid"] >= 0)
