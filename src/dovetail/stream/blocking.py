"""A replica without asyncio: runs `SharedStream` on an event loop in its own thread.

    def answer(event, leadership):
        ...

    with BlockingStream.on_kafka("broker:9092", "messages", answer, settings) as stream:
        threading.Event().wait()                  until Ctrl-C, or whatever else ends the program

The handler is a plain function that runs on its own thread, so pings go out meanwhile.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from dovetail.blocking import Blocking
from dovetail.election import MemberStatus
from dovetail.election.blocking import BlockingLeadership
from dovetail.election.leadership import Leadership
from dovetail.given_functions import check_plain_function, check_ran
from dovetail.stream.handler import PlainHandler
from dovetail.stream.settings import StreamSettings
from dovetail.stream.source import Event
from dovetail.stream.stream import SharedStream

BlockingHandler = Callable[[Event, BlockingLeadership], None]


class BlockingStream(Blocking[SharedStream]):
    """One replica's share of a stream; inside `with` it takes part."""

    def __init__(
        self, make: Callable[[PlainHandler], SharedStream], handler: BlockingHandler
    ) -> None:
        """`make` makes the replica, in its loop, with the handler that it is given.

        Raises `InvalidInput` for a handler that is not a plain function.
        """
        check_plain_function(handler, "the handler of a blocking stream")
        super().__init__(lambda: make(self._plain(handler)))

    @classmethod
    def on_kafka(
        cls,
        bootstrap: str,
        topic: str,
        handler: BlockingHandler,
        settings: StreamSettings,
        **more: Any,
    ) -> "BlockingStream":
        """A replica on a topic of Dovetail or Kafka; see `SharedStream.on_kafka`."""
        settings.check()
        return cls(
            lambda plain: SharedStream.on_kafka(bootstrap, topic, plain, settings, **more), handler
        )

    def _plain(self, handler: BlockingHandler) -> PlainHandler:
        call: Callable[..., object] = handler

        @wraps(handler)
        def handle(event: Event, leadership: Leadership) -> None:
            check_ran(call(event, BlockingLeadership(self, leadership)), "the handler")

        return handle

    def start(self) -> None:
        """Joins and begins to consume, unless `with` did (`start_immediately`)."""
        self.call(self.held.start())

    def status(self) -> MemberStatus:
        """What this replica knows of its cluster now."""
        return self.call(_status(self.held))

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether this replica does its part, and the facts."""
        return self.call(_health(self.held))


async def _status(stream: SharedStream) -> MemberStatus:
    return stream.member.status()


async def _health(stream: SharedStream) -> tuple[bool, dict[str, Any]]:
    return stream.health()
