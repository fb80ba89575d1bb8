"""The ways to answer a request: at once, later in its turn, or later beside others (pipelined)."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from dovetail.buffers import Buffer

Answer = list[Buffer] | None


class PipelinedReply:
    """An answer that waits for something while the next request is already begun.

    If the client goes before, `future` is cancelled. `released` is for work that needs the frame's
    bytes for longer than the answer takes, such as a write that was answered as late: they count
    as held until it is done.
    """

    __slots__ = ("future", "released")

    def __init__(
        self,
        future: "asyncio.Future[Answer]",
        released: "asyncio.Future[None] | None" = None,
    ) -> None:
        self.future = future
        self.released = released

    @classmethod
    def of(cls, work: Coroutine[Any, Any, Answer]) -> "PipelinedReply":
        """An answer that is worked out in a task of its own, begun now."""
        return cls(begin(work))


class OrderedReply(NamedTuple):
    """An answer that is worked out before the next request is begun.

    If the client goes before, `answer` is cancelled; the frame's bytes count as held until
    `released` is done too.
    """

    answer: Coroutine[Any, Any, Answer]
    released: "asyncio.Future[Any]"


class Pending(NamedTuple):
    """A request that was begun, and its place in the line of answers."""

    future: "asyncio.Future[Answer]"
    frame_bytes: int
    released: "asyncio.Future[Any] | None" = None


Reply = Answer | PipelinedReply | OrderedReply | Coroutine[None, None, Answer]


def begin(work: Coroutine[Any, Any, Answer]) -> "asyncio.Task[Answer]":
    """A task of a request: its connection keeps it and sees it end.

    Made by the loop itself, because `start_task` would cost 3 us more for every request.
    """
    return asyncio.get_running_loop().create_task(work)
