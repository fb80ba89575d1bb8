"""The console as a Kafka client of its own cluster.

Topics, groups and messages are asked for and changed through the node's Kafka door, like anybody
else does it: so any broker's console answers for the whole cluster, with the same checks, limits
and errors. librdkafka does it on threads of its own; nothing is started before the first request,
and all of it ends after a while without one. A broker that does not answer within the time limit is
`Unavailable`, or `Uncertain` where something was to be changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.console.web.threads import Threads
from dovetail.errors import DovetailError, InvalidInput, Unavailable, Uncertain

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Result = TypeVar("Result")

#: Longest wait for an answer; a page's reader has given up by then.
CALL_S_MAX = 8.0
#: Longest wait for a broker that knows the others.
LOOK_S_MAX = 3.0
#: A client that nobody needed for this long ends.
IDLE_S_MAX = 60.0

#: Settings of a client.
ClientConfig = dict[str, str | int | float | bool]
#: A partition of a topic.
Partition = tuple[str, int]


class KafkaLink:
    """Makes clients when they are needed, and ends them when they are not."""

    def __init__(
        self,
        config: Callable[[], ClientConfig],
        threads: Threads,
        *,
        owned: Callable[[Partition], bool],
    ) -> None:
        """`config` says where the node's Kafka door is and how to log in there.

        `owned` says whether there is somebody to ask about a partition: the client itself would
        wait for one that has no owner, and remember for a while that a topic was not there.
        """
        self._config = config
        self.threads = threads
        self.owned = owned
        self._admin: AdminClient | None = None
        self._making = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def config(self) -> ClientConfig:
        """What every client here has in common. Raises `Unavailable`."""
        return {
            **self._config(),
            "client.id": "dovetail-console",
            "socket.timeout.ms": int(CALL_S_MAX * 1000),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 30_000,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }

    async def admin(self) -> "AdminClient":
        """The client for everything but messages."""
        async with self._making:
            if self._admin is None:
                config = self.config()
                self._admin = await self.threads.run(_make_admin, config)
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S_MAX, self._end_idle)
        return self._admin

    async def look_around(self) -> None:
        """Has the client learn anew who owns what. Raises `Unavailable`."""
        admin = await self.admin()
        try:
            await self.threads.run(admin.list_topics, timeout=LOOK_S_MAX)
        except Exception as error:
            raise told("asking who owns what", error) from error

    async def ask(
        self,
        doing: str,
        action: "Callable[[AdminClient], Mapping[Any, Future[Any]]]",
        *,
        changes: bool = False,
    ) -> dict[Any, Any]:
        """The results of an admin call by its keys. Raises for the first that failed."""
        admin = await self.admin()
        try:
            futures = action(admin)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{doing}: {error}") from error
        except Exception as error:
            raise told(doing, error, changes=changes) from error
        waits = {key: asyncio.wrap_future(future) for key, future in futures.items()}
        await within(doing, asyncio.wait(waits.values()), changes=changes) if waits else None
        results = {}
        for key, wait in waits.items():
            failure = wait.exception()
            if isinstance(failure, Exception):
                raise told(doing, failure, changes=changes) from failure
            results[key] = wait.result()
        return results

    def _end_idle(self) -> None:
        task = asyncio.ensure_future(self.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends what runs; the next request starts it again."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._admin is None:
            return
        held = [self._admin]
        self._admin = None
        # The last reference waits for threads, so it must not be given up in the event loop.
        await self.threads.run(held.clear)


async def within(doing: str, work: Awaitable[Result], *, changes: bool = False) -> Result:
    """The result, if it comes in time. Raises `Unavailable`, or `Uncertain` if it `changes`."""
    try:
        async with asyncio.timeout(CALL_S_MAX + 1.0):
            return await work
    except TimeoutError as error:
        raise _silent(doing, "no answer in time", changes=changes) from error


def told(doing: str, error: Exception, *, changes: bool = False) -> DovetailError:
    """The error of ours that says what a client's error means."""
    from confluent_kafka import KafkaError, KafkaException

    from dovetail.kafka.client.librdkafka import SILENT, meaning_of

    if isinstance(error, DovetailError):
        return error
    if not isinstance(error, KafkaException):
        return InvalidInput(f"{doing}: {error}")
    reason: KafkaError = error.args[0]
    meaning = meaning_of(doing, reason)
    if reason.code() in SILENT or isinstance(meaning, Uncertain):
        return _silent(doing, reason.str(), changes=changes)
    return meaning


def _silent(doing: str, reason: str, *, changes: bool) -> DovetailError:
    kind = Uncertain if changes else Unavailable
    end = "; it may or may not have happened" if changes else ""
    return kind(
        f"{doing}: the broker in question did not answer ({reason}){end}. Is a partition without "
        "an owner? Can this machine reach the address that brokers tell clients "
        "(kafka.advertised_host)?"
    )


def _make_admin(config: ClientConfig) -> "AdminClient":
    from confluent_kafka.admin import AdminClient

    return AdminClient(config)
