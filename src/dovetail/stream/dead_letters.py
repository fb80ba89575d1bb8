"""Sets aside events that a handler could not handle; they can be replayed.

`KafkaDeadLetters` writes them to a topic, in the form of a team's dead letters: key, value and
headers as they came, and headers with the reason, the number of attempts, and the topic and place
of origin. So `dovetail stream dead` and the console show and replay them; a replay appends the
event to its stream again.

An event that just fits its own topic is too large for another with all of that. It is then set
aside with a shorter reason, or none.

An event counts as done after it was set aside. If the leader dies between the two, the next one may
set it aside once more.
"""

import asyncio
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dovetail.dead_letter import ATTEMPTS, KIND, PLACE, REASON, SOURCE, TRACEBACK
from dovetail.election.kafka_client import ClientConfig, base_config
from dovetail.errors import Unavailable
from dovetail.foreign import readable
from dovetail.stream.retrying import Failing
from dovetail.stream.source import Event

#: The end of the name of such a topic, by which the console finds it.
ENDING = ".dead"
#: Longest reason and traceback: a record of a few kilobytes is read by people.
_TEXT_CHARACTERS_MAX = 4_000
#: The same, for a record that is too large for its topic with longer ones; empty ones are left out.
_TEXT_CHARACTERS_LESS = (200, 0)
#: The largest record that this side sends; the topic has the last word. librdkafka's limit.
_RECORD_BYTES_MAX = 1_000_000_000
#: Longest wait for the broker's answer; then the event waits, and it is tried again.
_APPEND_S_MAX = 30.0


class DeadLetters(Protocol):
    """A place for events that were given up."""

    async def put(self, failing: Failing, *, source: str) -> None:
        """Keeps the event; it is kept when this returns. Raises `Unavailable`."""
        ...

    async def close(self) -> None:
        """Releases what is held; safe to call again."""
        ...


class MemoryDeadLetters:
    """Dead letters in memory, for tests."""

    def __init__(self) -> None:
        self.letters: list[Failing] = []
        self.connected = True

    async def put(self, failing: Failing, *, source: str) -> None:
        del source
        if not self.connected:
            raise Unavailable("the dead letters in memory are cut off")
        self.letters.append(failing)

    async def close(self) -> None:
        return


class KafkaDeadLetters:
    """Dead letters in a topic."""

    def __init__(
        self, bootstrap: str, topic: str, *, timeout_ms: int, config: ClientConfig | None = None
    ) -> None:
        self._topic = topic
        self._config = {
            **base_config(bootstrap, timeout_ms, config or {}),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.max.bytes": _RECORD_BYTES_MAX,
            "message.timeout.ms": int(_APPEND_S_MAX * 1000),
        }
        self._producer: Producer | None = None

    async def put(self, failing: Failing, *, source: str) -> None:
        await asyncio.to_thread(self._put, failing, source)

    async def close(self) -> None:
        self._producer = None

    def _put(self, failing: Failing, source: str) -> None:
        if self._producer is None:
            self._producer = Producer(self._config)
        error: KafkaError | None = None
        for characters_max in (_TEXT_CHARACTERS_MAX, *_TEXT_CHARACTERS_LESS):
            error = self._write(failing.event, _why(failing, source, characters_max))
            if error is None or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                break
        if error is not None:
            raise Unavailable(f"cannot write the event to {self._topic!r}: {error.str()}")

    def _write(self, event: Event, why: list[tuple[str, bytes]]) -> KafkaError | None:
        """Writes a record, and returns what the broker, or this side, has against it."""
        assert self._producer is not None
        answers: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            answers.append(error)

        try:
            self._producer.produce(
                self._topic,
                key=event.key,
                value=None if event.tombstone else event.value,
                headers=[*event.headers, *why],
                on_delivery=delivered,
            )
            self._producer.flush(_APPEND_S_MAX)
        except (BufferError, KafkaException) as error:
            raise Unavailable(f"cannot write to {self._topic!r}: {error}") from error
        return answers[0] if answers else KafkaError(KafkaError._TIMED_OUT, "no answer")


def _why(failing: Failing, source: str, characters_max: int) -> list[tuple[str, bytes]]:
    event = failing.event
    said = {
        KIND: "failed",
        REASON: failing.reason,
        TRACEBACK: failing.traceback,
        ATTEMPTS: str(failing.attempts),
        SOURCE: source,
        PLACE: f"{event.lane}:{event.offset}",
    }
    for name in (REASON, TRACEBACK):
        said[name] = readable(said[name])[-characters_max:] if characters_max else ""
    return [(name, readable(text).encode(errors="replace")) for name, text in said.items() if text]
