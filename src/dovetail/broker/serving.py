"""Running a node as a process: the loop, the signals, the exit code."""

import asyncio
import os
import signal
from collections.abc import Callable

import uvloop

from dovetail.broker.node import Endpoints, HttpStarter, Node
from dovetail.logging import get_logger
from dovetail.settings import Settings

_log = get_logger("node")

#: What a shell shows for a process that a second SIGINT ended.
_EXIT_NOW = 130


def serve(
    settings: Settings, on_ready: Callable[[Endpoints], None], *, http: HttpStarter | None = None
) -> int:
    """Serves until SIGTERM or SIGINT; a second signal exits at once. Returns the exit code.

    Raises `DovetailError` if the node can not start.
    """
    return uvloop.run(_serve(settings, on_ready, http))


async def _serve(
    settings: Settings, on_ready: Callable[[Endpoints], None], http: HttpStarter | None
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(_EXIT_NOW)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with Node(settings, http=http) as node:
        on_ready(node.endpoints)
        _log.info("ready", kafka=node.endpoints.kafka, http=node.endpoints.http)
        await stopping.wait()
        _log.info("stopping")
    _log.info("stopped")
    return 0
