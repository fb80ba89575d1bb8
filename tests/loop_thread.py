"""An event loop on a thread of its own, for asynchronous parts of synchronous tests."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Longest wait for what was cancelled to end.
CLOSE_SECONDS_MAX = 60
#: Turns of the loop in which nothing new comes up: then nothing is left.
_TURNS = 5


class LoopThread:
    """Runs coroutines for other threads until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float) -> Result:
        """Run on the loop, and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        """Cancel what still runs, let connections finish closing, and end the thread."""
        self.run(self._end_all(), CLOSE_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS_MAX)
        self._loop.close()

    async def _end_all(self) -> None:
        # A connection that was just accepted becomes a transport in one turn of the loop and a task
        # in the next, and a transport that was closed gives up its socket in the one behind; what
        # is still on this way would be found open by the garbage collector.
        quiet = 0
        while quiet < _TURNS:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
            quiet = 0 if tasks else quiet + 1


async def stop_accepting(server: asyncio.Server) -> None:
    """Closes a server. What it has accepted becomes connections first.

    One that is closed in the two turns of the loop that this takes leaves them open: asyncio then
    fails to make a transport, in silence, and forgets the socket.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    server.close()
