"""Puts messages of the outbox into their timelines, under names that were chosen beforehand.

A batch that was written down (`batch.py`) is also a batch of the timeline, named by the same
producer and number. Any relay that sends it again gives the same name to the same messages, and the
timeline stores them once. It keeps names for a day. A relay that is away for longer, in the middle
of a batch, may store that batch twice, with equal ids in the header `dovetail-message-id`.

A message that no timeline can take is set aside before anything is sent. One that this timeline
refuses (too large, due too far ahead) is set aside with the timeline's reason, and its neighbours
are stored. So a number is never used for other messages: a name means the same for ever.
"""

import asyncio
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from dovetail.errors import DovetailError, InvalidInput, TopicUnknown, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox.batch import Batch, Identity, Row
from dovetail.outbox.drain import Dead, Fate, Outcome
from dovetail.outbox.message import (
    DELAY_HEADER,
    DUE_HEADER,
    MESSAGE_ID_HEADER,
    PRIORITY_HEADER,
    TIMELINE_PREFIX,
    check_timed_key,
    due_ms_of,
    headers_from_text,
)
from dovetail.outbox.spans import follow
from dovetail.timeline.client import connect_blocking
from dovetail.timeline.client.blocking import BlockingDovetail
from dovetail.timeline.client.timeline import BATCH, REFUSALS, Timeline
from dovetail.timeline.config import check_name
from dovetail.timeline.message import (
    PRIORITY_MAX,
    BatchId,
    NewMessage,
    encode_headers,
)

#: Names of batches that lie further back are forgotten: many times what can still be on its way.
SETTLED_ROWS: Final = 100_000

_OURS = frozenset({DUE_HEADER, DELAY_HEADER, PRIORITY_HEADER})


class TimelineSender:
    """A `Sender` whose topics are timelines; all workers of a relay share one."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()
        self._client: BlockingDovetail | None = None
        self._closed = False

    def close(self) -> None:
        """Closes the connection; a batch that is on its way is abandoned."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.__exit__()

    def partitions(self, topic: str) -> int:
        """A timeline is one whole."""
        del topic
        return 1

    def new_identity(self) -> Identity:
        """A random one: timelines take any name."""
        return Identity(random.SystemRandom().randrange(2**62), 0)

    def send(
        self, topic: str, batch: Batch, sets: dict[int, list[Row]], after: "Future[Any] | None"
    ) -> "Future[dict[int, Outcome]]":
        client = self._connected()
        name = topic.removeprefix(TIMELINE_PREFIX)
        sent = client.submit(self._send(client, name, batch, sets, after))
        follow(sent, topic, sets)
        return sent

    def _connected(self) -> BlockingDovetail:
        with self._lock:
            if self._closed:
                raise Unavailable("the relay is stopping")
            if self._client is None:
                login = self._brokers.login()
                made = connect_blocking(
                    self._brokers.bootstrap,
                    client_id="dovetail-outbox",
                    tls=login.tls,
                    user=login.user,
                    password=login.password,
                    mechanism=login.mechanism,
                )
                self._client = made.__enter__()
            return self._client

    async def _send(
        self,
        client: BlockingDovetail,
        name: str,
        batch: Batch,
        sets: dict[int, list[Row]],
        after: "Future[Any] | None",
    ) -> dict[int, Outcome]:
        if after is not None:
            before: dict[int, Outcome] = await asyncio.wrap_future(after)
            if any(outcome.fate is not Fate.ACKNOWLEDGED for outcome in before.values()):
                return {partition: Outcome(Fate.SKIPPED, "not sent") for partition in sets}

        timeline = client.held.timeline(name)
        return {
            partition: await _insert(timeline, batch, batch.first_by_partition[partition], rows)
            for partition, rows in sets.items()
        }


async def _insert(timeline: Timeline, batch: Batch, first: int, rows: Sequence[Row]) -> Outcome:
    good: list[tuple[Row, NewMessage]] = []
    dead: list[Dead] = []
    for row in rows:
        try:
            # Whoever writes rows without `Message` may name what can be no timeline.
            check_name(timeline.name)
            good.append((row, new_message(row)))
        except InvalidInput as error:
            dead.append(Dead(row.id, str(error)))

    try:
        for start in range(0, len(good), BATCH):
            part = good[start : start + BATCH]
            named = BatchId(batch.producer_id, first + start, max(0, first - SETTLED_ROWS))
            outcomes = await timeline.insert([message for _, message in part], batch=named)
            for (row, _), outcome in zip(part, outcomes, strict=True):
                reason = REFUSALS.get(outcome.status)
                if reason is not None:
                    dead.append(Dead(row.id, f"the message {reason}"))
    except TopicUnknown as error:
        hint = f"{error}; create it, for example with `dovetail timeline create {timeline.name}`"
        return Outcome(Fate.FAILED, hint)
    except DovetailError as error:
        return Outcome(Fate.FAILED, str(error))
    return Outcome(Fate.ACKNOWLEDGED, dead=tuple(dead))


def new_message(row: Row) -> NewMessage:
    """The row as a timeline takes it, the same each time. Raises `InvalidInput`."""
    if row.payload is None:
        raise InvalidInput("a message for a timeline needs a payload; this one is NULL")
    pairs = [(MESSAGE_ID_HEADER, row.message_id.encode())]
    headers = headers_from_text(row.headers)
    for name, value in headers:
        if value is None:
            raise InvalidInput(f"header {name!r} has no value, which a timeline needs")
        if name not in _OURS:
            pairs.append((name, value))

    due_ms = due_ms_of(headers, published_ms=row.created_ms)
    return NewMessage(
        due_ms or 0,
        row.payload,
        encode_headers(tuple(pairs)),
        _text(row.key, "key"),
        _priority(dict(headers)),
        _text(row.partition_key, "order key"),
    )


def _text(key: bytes | None, what: str) -> str | None:
    return None if key is None else check_timed_key(key, what)


def _priority(headers: dict[str, bytes | None]) -> int:
    given = headers.get(PRIORITY_HEADER) or b"0"
    if len(given) != 1 or not given.isdigit() or int(given) > PRIORITY_MAX:
        raise InvalidInput(f"header {PRIORITY_HEADER} holds {given[:100]!r}, not 0 to 9")
    return int(given)
