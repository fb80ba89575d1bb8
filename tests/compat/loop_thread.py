"""An event loop on a thread of its own, for asynchronous parts of synchronous tests."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Longest wait for what was cancelled to end.
CLOSE_SECONDS_MAX = 10


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
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A transport that was closed or aborted gives up its socket in the next turn of the loop;
        # without these turns the socket would be found open by the garbage collector.
        for _ in range(3):
            await asyncio.sleep(0)
