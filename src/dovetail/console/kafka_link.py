"""The console as a Kafka client of its own cluster.

The functions of `admin` block, so they run on the console's threads. No client exists before the
first request, and it ends after a while without one.
"""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from dovetail.admin.kafka import Kafka
from dovetail.background import Alarm, Tasks, later
from dovetail.console.web.threads import Threads

#: Longest wait for an answer; a page's reader has given up by then.
CALL_S_MAX = 8.0
#: A client that nobody needed for this long ends.
IDLE_S_MAX = 60.0

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class KafkaLink:
    """Makes a client when it is needed, and ends it when it is not."""

    def __init__(self, make: Callable[[], Kafka], threads: Threads) -> None:
        """`make` raises `Unavailable` while the node starts."""
        self._make = make
        self._threads = threads
        self._kafka: Kafka | None = None
        self._idle: Alarm | None = None
        self._ending = Tasks()

    async def run(
        self,
        call: Callable[Concatenate[Kafka, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """The result of a function of `admin` that takes the client first."""
        if self._kafka is None:
            self._kafka = self._make()
        kafka = self._kafka
        if self._idle is not None:
            self._idle.cancel()
        self._idle = later(IDLE_S_MAX, self._end_idle, name="console/end-idle-client")
        return await self._threads.run(call, kafka, *args, **kwargs)

    def _end_idle(self) -> None:
        self._ending.start(self.close(), name="console/close-idle-client")

    async def close(self) -> None:
        """Ends the client; the next request makes another."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        kafka, self._kafka = self._kafka, None
        if kafka is not None:
            # The end of the client waits for its threads, so it must not happen in the event loop.
            await self._threads.run(kafka.close)
