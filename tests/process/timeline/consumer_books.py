"""Consumers in processes of their own, what they wrote down, and what must be true of it."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests import warm_python
from tests.stopping import pause_process

Line = dict[str, Any]
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
#: A process that wakes begins at most one handler with a lease that has ended: the one that stood
#: between the look at the clock and its first line. It does so at once.
_WAKE_MS = 500.0


class Consumer:
    """One child."""

    def __init__(self, name: str, book: Path, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.book = book
        self.process = process
        self.woken_ms: list[float] = []
        self.hangs = False

    @property
    def works(self) -> bool:
        """Whether it has begun with something."""
        return self.book.exists() and self.book.stat().st_size > 0


class Consumers:
    """Child processes and their books."""

    def __init__(
        self, folder: Path, addresses: list[str], *, timeline: str, rng: random.Random
    ) -> None:
        self._folder = folder
        self._addresses = addresses
        self._timeline = timeline
        self.rng = rng
        self.all: list[Consumer] = []
        self._living: list[Consumer] = []
        self._read_bytes: Counter[Path] = Counter()
        self._handled: set[int] = set()

    def come(self, former: Consumer | None = None) -> None:
        """A new one, or one that takes the place of a dead one under the same id."""
        number = len(self.all) + 1
        name = f"consumer-{number}" if former is None else former.name
        # Each knows all brokers, and begins with another one.
        turn = number % len(self._addresses)
        addresses = ",".join(self._addresses[turn:] + self._addresses[:turn])
        book = self._folder / f"book-{number}"
        words = [addresses, self._timeline, str(book), f"rack-{number % 3}", name]
        command = [sys.executable, "-m", "tests.process.timeline.consumer_child", *words]
        with (self._folder / f"log-{number}").open("w") as log:
            process = warm_python.Popen(command, stdout=log, stderr=log)
        self.all.append(Consumer(name, book, process))
        self._living.append(self.all[-1])

    def _any(self) -> Consumer:
        """One that has work, and does not hang."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            found = [one for one in self._living if not one.hangs and one.works]
            if found:
                return self.rng.choice(found)
            assert time.monotonic() < deadline, "no consumer has work"
            time.sleep(0.05)

    def kill(self) -> Consumer:
        """kill -9 on one of them."""
        one = self._any()
        self._living.remove(one)
        one.process.kill()
        one.process.wait()
        return one

    def go(self) -> None:
        """One of them stops by itself, when it was asked to."""
        one = self._any()
        self._living.remove(one)
        one.process.send_signal(signal.SIGTERM)
        code = one.process.wait(STOP_SECONDS_MAX)
        assert code == 0, f"{one.name} ended with {code}:\n{self._log(one)}"

    def hang(self) -> Consumer:
        """SIGSTOP."""
        one = self._any()
        one.hangs = True
        pause_process(one.process.pid)
        return one

    def wake(self, one: Consumer) -> None:
        """SIGCONT."""
        one.woken_ms.append(time.time() * 1000)
        one.process.send_signal(signal.SIGCONT)
        one.hangs = False

    def fail_if_ended(self) -> None:
        """Fails if one has ended that nobody has killed or sent away."""
        for one in self._living:
            assert one.process.poll() is None, f"{one.name} has ended:\n{self._log(one)}"

    def _log(self, one: Consumer) -> str:
        return (self._folder / one.book.name.replace("book", "log")).read_text()[-2000:]

    def end(self) -> None:
        """kill -9 on everybody; also those that stand."""
        for one in self._living:
            one.process.kill()
            one.process.wait()
        self._living.clear()

    def handled(self) -> set[int]:
        """Messages whose handler has come to its end; reads only what is new."""
        for one in self.all:
            if one.book.exists():
                with one.book.open() as book:
                    book.seek(self._read_bytes[one.book])
                    text = book.read()
                whole = text[: text.rfind("\n") + 1]
                self._read_bytes[one.book] += len(whole)
                lines = map(json.loads, whole.splitlines())
                self._handled |= {line["id"] for line in lines if line["what"] == "end"}
        return self._handled

    def lines(self) -> list[Line]:
        """All that was written; a killed one may have left half a line."""
        return [
            json.loads(line)
            for one in self.all
            if one.book.exists()
            for line in one.book.read_text().splitlines()
            if line.endswith("}")
        ]


def check(consumers: Consumers) -> str:
    """Fails if somebody began early, without a live lease, or while another one's was live."""
    lines = consumers.lines()
    begun: dict[int, list[Line]] = defaultdict(list)
    spans: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
    for line in lines:
        if line["what"] == "begin":
            begun[line["id"]].append(line)
        spans[line["book"], line["id"], line["attempt"]].append(line)
    _check_begins([line for found in begun.values() for line in found], consumers)
    for identity, attempts in begun.items():
        attempts.sort(key=lambda line: (line["attempt"], line["now_ms"]))
        for before, after in pairwise(attempts):
            if before["attempt"] == after["attempt"]:
                # It came back under the same id, and took up what it held.
                assert before["consumer"] == after["consumer"], f"{identity}: {before} {after}"
                assert before["book"] != after["book"], f"{identity}: {before} {after}"
                continue
            span = spans[before["book"], identity, before["attempt"]]
            until_ms = max(line["until_ms"] for line in span)
            # A handler that was cancelled is over, and may have given its message back at once.
            over = ("end", "failed", "lost")
            ended = [line["now_ms"] for line in span if line["what"] in over]
            over_ms = min([until_ms, *ended])
            assert after["now_ms"] >= over_ms, f"message {identity}: {span} and then {after}"
    return _told(lines, begun)


def _check_begins(begins: list[Line], consumers: Consumers) -> None:
    woken_ms = {str(one.book): one.woken_ms for one in consumers.all}
    excused: Counter[tuple[str, float]] = Counter()
    for line in begins:
        assert line["now_ms"] >= line["start_ms"], f"early: {line}"
        assert line["now_ms"] >= line["due_ms"], f"early: {line}"
        if line["now_ms"] >= line["until_ms"]:
            at_ms = [ms for ms in woken_ms[line["book"]] if 0 <= line["now_ms"] - ms < _WAKE_MS]
            assert at_ms, f"begun after the end of its lease: {line}"
            excused[line["book"], at_ms[-1]] += 1
    assert all(count == 1 for count in excused.values()), f"begun after the end: {excused}"


def _told(lines: list[Line], begun: dict[int, list[Line]]) -> str:
    kinds = Counter(line["what"] for line in lines)
    attempts = Counter(max(line["attempt"] for line in found) for found in begun.values())
    return (
        f"{len(begun)} messages; lines {dict(kinds)}; by attempts {dict(sorted(attempts.items()))}"
    )
