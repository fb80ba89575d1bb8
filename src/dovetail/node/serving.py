"""Runs a node as a process: event loop, signals, exit code."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import uvloop

from dovetail import tracing
from dovetail.background import first_of
from dovetail.errors import CoordinationDown, LeaseLost, WatchGap
from dovetail.logging import get_logger
from dovetail.node.node import Endpoints, HttpStarter, Node
from dovetail.settings import Settings

_log = get_logger("node")

#: Buffers up to this size come from memory that is kept; the largest that glibc allows.
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024

#: So much free memory is kept; it is as much as the tail cache turns over in some 0.2 s.
TRIM_THRESHOLD_BYTES = 128 * 1024 * 1024

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

#: Between two starts, when coordination went away in the middle of the first.
RESTART_S = 1.0

#: The node must not go on, but may be started again.
_EXIT_LOST = 1

#: What a shell shows for a process that a second SIGINT ended.
_EXIT_NOW = 130


#: What runs beside a node while it serves; it is entered before the node counts as ready.
Beside = Callable[[Node], AbstractAsyncContextManager[None]]


def serve(
    settings: Settings,
    on_ready: Callable[[Endpoints], None],
    *,
    http: HttpStarter | None = None,
    beside: Beside | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; a second signal exits at once. Returns the exit code.

    Raises `DovetailError` if the node cannot start.
    """
    _keep_freed_memory()
    tracing.use(settings.tracing, service=f"dovetail-{settings.node.name}")
    try:
        return uvloop.run(_serve(settings, on_ready, http, beside))
    finally:
        tracing.end()


def _keep_freed_memory() -> None:
    """Has glibc keep what the frames of large requests leave, instead of giving it back at once.

    Taking a megabyte anew from the system costs 0.6 ms of page faults here, more than writing and
    syncing it: 1 KiB messages went from 250 to 680 MB/s, the node's system time from 2.8 to 0.4 s
    a gigabyte. Elsewhere than on glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


async def _serve(
    settings: Settings,
    on_ready: Callable[[Endpoints], None],
    http: HttpStarter | None,
    beside: Beside | None,
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(_EXIT_NOW)
        stopping.set()
        # A start can take long: it waits for etcd, and reads what a crash left.
        if starting is not None:
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)

    try:
        async with AsyncExitStack() as stack:
            node = await _start(settings, http)
            stack.push_async_exit(node)
            if beside is not None:
                await stack.enter_async_context(beside(node))
            starting = None
            node.watch_loop()
            on_ready(node.endpoints)
            _log.info("ready", kafka=node.endpoints.kafka, http=node.endpoints.http)
            await first_of(node.lost.wait(), stopping.wait())
            _log.info("stopping")
    except asyncio.CancelledError:
        if starting is None or not stopping.is_set():
            raise
        _log.info("stopped before it was ready")
        return 0

    _log.info("stopped")
    return _EXIT_LOST if node.lost.is_set() else 0


async def _start(settings: Settings, http: HttpStarter | None) -> Node:
    """Starts a node, and restarts whenever coordination is lost during the start."""
    while True:
        try:
            return await Node(settings, http=http).__aenter__()
        except (CoordinationDown, LeaseLost, WatchGap) as error:
            _log.warning(
                "lost coordination during the start; starting again",
                error=str(error),
                seconds=RESTART_S,
            )
        await asyncio.sleep(RESTART_S)
