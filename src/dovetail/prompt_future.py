"""A future that tells one listener at once, and not in a later turn of the event loop.

The answer to a Produce passes two futures, that of its batch and that of its request. asyncio calls
back in the next turn, and each turn is a system call and a chance for another thread to take the
interpreter: for one message at a time that was a tenth of all, and on a crowded machine more.

Promises: the listener runs inside `set_result` or `set_exception`; what it raises goes to the
loop's handler, as from any callback, and whoever set the result goes on. A future that is cancelled
tells it in the next turn: whoever cancels is often in the middle of a list.
Not here: more than one listener, and those that may call back into who sets the result; for them
there are `add_done_callback` and `await`, which work as in any future.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """See the module."""

    __slots__ = ("_listener",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop=loop or asyncio.get_running_loop())
        self._listener: Callable[[asyncio.Future[T]], object] | None = None

    def listen(self, listener: Callable[["asyncio.Future[T]"], object]) -> None:
        """Has the listener told, now if there is a result; it is the only one."""
        assert self._listener is None
        self._listener = listener
        if self.done():
            self._tell()

    def set_result(self, result: T) -> None:
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and self._listener is not None:
            self.get_loop().call_soon(self._tell)
        return cancelled

    def _tell(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        try:
            listener(self)
        except Exception as error:  # noqa: BLE001 - it must not end the work of who set the result
            self.get_loop().call_exception_handler(
                {
                    "message": f"Exception in the listener {listener!r}",
                    "exception": error,
                    "handle": listener,
                }
            )


def when_done(
    future: "asyncio.Future[T]", listener: Callable[["asyncio.Future[T]"], object]
) -> None:
    """Has the listener told at once if the future can, else in a turn of the loop."""
    if isinstance(future, PromptFuture):
        future.listen(listener)
    else:
        future.add_done_callback(listener)
