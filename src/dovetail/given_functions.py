"""Functions that users give: handlers, conditions, the function of a team.

A call of a generator function runs nothing of it, and what it gives is true. As a handler it would
lose every message without a word, and as a condition it would always hold. So it is refused where
it is given; and where only the call shows it, as with a lambda, its result is refused.
"""

import inspect
from collections.abc import Callable

from dovetail.errors import InvalidInput
from dovetail.foreign import shown


def is_async(given: Callable[..., object]) -> bool:
    """Whether a call of it must be awaited; it may be a function, a partial or a callable."""
    return _any_of(given, inspect.iscoroutinefunction)


def check_function(given: object, what: str) -> None:
    """Raises `InvalidInput` unless it can be called, and a call runs it to its end."""
    if not callable(given):
        raise InvalidInput(f"{what} must be a function, not {shown(given)}")
    if _any_of(given, inspect.isgeneratorfunction) or _any_of(given, inspect.isasyncgenfunction):
        raise InvalidInput(
            f"{what} {shown(given)} is a generator: a call would run nothing of it; leave out "
            "`yield`"
        )


def check_plain_function(given: object, what: str) -> None:
    """`check_function`, for what is not awaited either."""
    check_function(given, what)
    if callable(given) and is_async(given):
        raise InvalidInput(f"{what} {shown(given)} must be a plain function, not an async one")


def check_ran(result: object, what: str) -> None:
    """Raises `TypeError` if a call gave something that has yet to run."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{what} returned a {type(result).__name__}, which nobody runs; give the function "
            "itself, without `yield`"
        )


def _any_of(given: object, holds: Callable[[object], bool]) -> bool:
    # The call of an object is a method of its class.
    return holds(given) or holds(getattr(given, "__call__", None))  # noqa: B004
