"""`Producer`: publishes messages of an application.

orders = Producer("orders")

with Session(engine) as session, session.begin():
    session.add(order)
    orders.publish(order.to_json(), key=str(order.id), on=session)
    orders.schedule("reminders", {"order": 7}, due="2h", on=session)

With the backend `kafka_async`, messages are in flight when `publish` returns: `flush` waits for
them, `close` and the end of a `with` block do, and so does the exit of the interpreter.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from dovetail.errors import InvalidInput
from dovetail.foreign import encoded
from dovetail.given_functions import check_plain_function
from dovetail.outbox.backends import FLUSH_S, Backend, OnError, TestBackend, backend_of
from dovetail.outbox.message import Due, HeadersGiven, Message
from dovetail.outbox.spans import published

if TYPE_CHECKING:
    from dovetail.settings import Settings

Encode = Callable[[Any], bytes | None]


def encode_json(payload: Any) -> bytes | None:
    """Bytes and text as they are, None as a tombstone, everything else as JSON."""
    if payload is None or isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return encoded(payload, "payload")
    try:
        # NaN is no JSON, and readers refuse it: here, where it can be mended.
        return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the payload cannot be encoded as JSON: {error}; give bytes, or an `encode`"
        ) from error


class Producer:
    """Publishes to one topic, or to those that the messages name."""

    def __init__(
        self,
        topic: str | None = None,
        *,
        backend: str | Backend | None = None,
        encode: Encode = encode_json,
        settings: "Settings | None" = None,
        on_error: OnError | None = None,
    ) -> None:
        """`on_error` gets topic and reason of what `kafka` or `kafka_async` could not deliver.

        Raises `InvalidInput`.
        """
        for what, given in (("encode", encode), ("on_error", on_error)):
            if given is not None:
                check_plain_function(given, f"{what} of a producer")
        self._topic = topic
        self._on_error = on_error
        self._encode = encode
        self._settings = settings
        self._backend = backend
        self._made: dict[str, Backend] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def flush(self, timeout_s: float = FLUSH_S) -> int:
        """Waits for what is on its way; returns how many messages are still not acknowledged."""
        deadline = time.monotonic() + timeout_s
        return sum(
            backend.flush(max(0.0, deadline - time.monotonic())) for backend in self._backends()
        )

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Flushes and ends. Raises `Uncertain` if something is still not acknowledged.

        A backend that was given as an object stays open: it may serve others.
        """
        for backend in self._made.values():
            backend.close(timeout_s)

    def publish(
        self,
        payload: Any,
        *,
        key: bytes | str | None = None,
        partition_key: bytes | str | None = None,
        headers: HeadersGiven = (),
        message_id: str | None = None,
        topic: str | None = None,
        due: Due | None = None,
        on: Any = None,
        backend: str | Backend | None = None,
    ) -> str:
        """Publishes one message; returns its id. Raises `InvalidInput`.

        With `due` ("2h", a timedelta or a datetime) it is read from the topic at that time, not
        before; that takes a topic with `dovetail.due=true`, and the backend `db`.
        """
        message = self.message(
            payload,
            key=key,
            partition_key=partition_key,
            headers=headers,
            message_id=message_id,
            topic=topic,
            due=due,
        )
        return self.publish_list([message], on=on, backend=backend)[0]

    def schedule(
        self,
        timeline: str,
        payload: Any,
        *,
        due: Due | None = None,
        key: str | None = None,
        order_key: str | None = None,
        headers: HeadersGiven = (),
        priority: int = 0,
        message_id: str | None = None,
        on: Any = None,
        backend: str | Backend | None = None,
    ) -> str:
        """Puts a message into a timeline, if the transaction commits; returns its id.

        It is due after a while ("2h", a timedelta), at a time (a datetime), or at once. `key` is
        unique in the timeline while its message exists there; messages of one `order_key` are
        handled one at a time. Raises `InvalidInput`.
        """
        message = self.timed(
            timeline,
            payload,
            due=due,
            key=key,
            order_key=order_key,
            headers=headers,
            priority=priority,
            message_id=message_id,
        )
        return self.publish_list([message], on=on, backend=backend)[0]

    def publish_list(
        self, messages: Iterable[Message], *, on: Any = None, backend: str | Backend | None = None
    ) -> list[str]:
        """Publishes a list, with `db` by one statement; returns the ids. Raises `InvalidInput`.

        `on` is what the caller's transaction runs on: a SQLAlchemy Session or Connection, a Django
        connection, or a DB-API connection. Nothing is committed here.
        """
        listed = _checked(messages)
        with published(listed) as made:
            self._chosen(backend).publish(made, on)
        return [message.id for message in listed]

    async def publish_async(self, payload: Any, *, on: Any = None, **given: Any) -> str:
        """`publish` for async sessions and connections."""
        backend = given.pop("backend", None)
        ids = await self.publish_list_async(
            [self.message(payload, **given)], on=on, backend=backend
        )
        return ids[0]

    async def schedule_async(
        self, timeline: str, payload: Any, *, on: Any = None, **given: Any
    ) -> str:
        """`schedule` for async sessions and connections."""
        backend = given.pop("backend", None)
        message = self.timed(timeline, payload, **given)
        return (await self.publish_list_async([message], on=on, backend=backend))[0]

    async def publish_list_async(
        self, messages: Iterable[Message], *, on: Any = None, backend: str | Backend | None = None
    ) -> list[str]:
        """`publish_list` for AsyncSession, AsyncConnection and psycopg's AsyncConnection."""
        listed = _checked(messages)
        with published(listed) as made:
            await self._chosen(backend).publish_async(made, on)
        return [message.id for message in listed]

    def message(
        self,
        payload: Any,
        *,
        key: bytes | str | None = None,
        partition_key: bytes | str | None = None,
        headers: HeadersGiven = (),
        message_id: str | None = None,
        topic: str | None = None,
        due: Due | None = None,
    ) -> Message:
        """A message for `publish_list`, encoded and checked. Raises `InvalidInput`."""
        where = topic or self._topic
        if where is None:
            raise InvalidInput("no topic: pass one to the producer or to the call")
        return Message.of(
            where,
            self._encode(payload),
            key=key,
            partition_key=partition_key,
            headers=headers,
            message_id=message_id,
            due=due,
        )

    def timed(self, timeline: str, payload: Any, **given: Any) -> Message:
        """A message of `schedule` for `publish_list`. Raises `InvalidInput`."""
        return Message.for_timeline(timeline, self._encode(payload), **given)

    @property
    def published(self) -> TestBackend:
        """The backend `test` of this producer, with what it has kept."""
        chosen = self._chosen("test" if self._backend is None else None)
        if not isinstance(chosen, TestBackend):
            raise InvalidInput("the producer's backend is not 'test', so it keeps no messages")
        return chosen

    def _backends(self) -> list[Backend]:
        given = self._backend
        others = [] if given is None or isinstance(given, str) else [given]
        return [*self._made.values(), *others]

    def _chosen(self, backend: str | Backend | None) -> Backend:
        given = backend if backend is not None else self._backend
        if given is not None and not isinstance(given, str):
            return given
        name = given or self._loaded().outbox.backend
        if name not in self._made:
            self._made[name] = backend_of(name, self._loaded(), on_error=self._on_error)
        return self._made[name]

    def _loaded(self) -> "Settings":
        if self._settings is None:
            from dovetail.settings import load_settings

            self._settings = load_settings()
        return self._settings


def _checked(messages: Iterable[Message]) -> Sequence[Message]:
    listed = list(messages)
    for message in listed:
        if not isinstance(message, Message):
            raise InvalidInput(
                f"{type(message).__name__} is not a Message; make one with Producer.message(...)"
            )
    return listed
