"""The pipeline of the soak: a route, a spray whose items wait, retries, and every kind of poison.

    sort ──even──► pack ──spray, 2 s later──► send
      └────odd──────────────────────────────────►┘

An odd job ends at `send` under its own id, an even one as `ITEMS` items with ids of their own.
"""

import os
import time

from dovetail.teams import JobContext, Pipeline, Reject, Team

ITEMS = 3
#: Which of so many jobs is what.
EVERY = 250
REFUSED, UNPRINTABLE, DEADLY, HANGING, MALFORMED, SHAKY = 7, 51, 97, 123, 169, 224
POISON = {REFUSED, UNPRINTABLE, DEADLY, HANGING, MALFORMED}


def is_poison(number: int) -> bool:
    return number % EVERY in POISON


def is_packed(number: int) -> bool:
    return number % 2 == 0


class Unprintable(Exception):
    """An error as foreign code may raise it."""

    def __str__(self) -> str:
        raise ValueError("there is no text")


def sort_out(job: int, context: JobContext) -> int:
    match job % EVERY:
        case kind if kind == REFUSED:
            raise Reject(f"{job} is bad: \udcff\x00")
        case kind if kind == UNPRINTABLE:
            raise Unprintable
        case kind if kind == DEADLY:
            os._exit(9)
        case kind if kind == HANGING:
            time.sleep(3600)
        case kind if kind == SHAKY and context.attempt == 1:
            raise OSError("not today: \udcff\x00")
    return job


def pack(job: int) -> list[int]:
    return [job * ITEMS + item for item in range(ITEMS)]


def send(job: int) -> int:
    return job


_sort = Team("sort", sort_out, workers=4, timeout="5s", backoff="10ms")
_pack = Team("pack", pack, workers=2, backoff="10ms")
_send = Team("send", send, workers=2, backoff="10ms")
_sort.route_to(is_packed, _pack, _send)
_pack.spray_to(_send, after="2s")
soaked = Pipeline("soaked", _sort, _pack, _send)
