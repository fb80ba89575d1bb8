"""The pipeline of the kill test: three teams, with a route and a spray.

    sort ──even──► pack ──spray──► send
      └────odd──────────────────────►┘

Every `BAD_EVERY`th job is refused by its function. An odd job ends at `send` under its own id, an
even one as `ITEMS` items with ids of their own.
"""

from dovetail.teams import Pipeline, Reject, Team

ITEMS = 3
BAD_EVERY = 250


def is_bad(number: int) -> bool:
    return number % BAD_EVERY == 7


def is_packed(number: int) -> bool:
    return number % 2 == 0


def sort_out(job: int) -> int:
    if is_bad(job):
        raise Reject(f"{job} is bad")
    return job


def pack(job: int) -> list[int]:
    return [job * ITEMS + item for item in range(ITEMS)]


def send(job: int) -> int:
    return job


_sort = Team("sort", sort_out, workers=2, backoff="10ms")
_pack = Team("pack", pack, workers=2, backoff="10ms")
_send = Team("send", send, workers=2, backoff="10ms")
_sort.route_to(is_packed, _pack, _send)
_pack.spray_to(_send)
kills = Pipeline("kills", _sort, _pack, _send)
