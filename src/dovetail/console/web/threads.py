"""Threads for the console's blocking calls, apart from those of the node.

Clients of Kafka, databases and files may wait for seconds; a reader of a page must not make the
node wait for a thread. They are started when needed.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

#: A live sample of every kind at once, and some room. What comes beyond waits its turn.
THREADS_MAX = 20

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threads:
    """Runs blocking calls."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def run(
        self,
        call: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """The result of a call that may block."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="console")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def close(self) -> None:
        """Takes no more; what runs comes to its end by itself, within its time limit."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
