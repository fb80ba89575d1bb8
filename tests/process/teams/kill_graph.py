"""The pipelines of the kill tests: all that a graph can have.

    sort ──even──► pack ──spray──► send ──gather──► bill
      └────odd───► wait ──after────► send

`sort` rejects some jobs at once. `wait` fails some the first time, and they are tried again by way
of a timeline; from there a job waits in a timeline too. A few stay in `wait` until they are
cancelled. `send` fails some the first time, and some every time. An odd job ends at `send` under
its own id, an even one as `ITEMS` items with ids of their own, and at `bill` when all of these have
ended. `plain` is the same without timelines, for brokers that have none.
"""

import time
from collections import Counter

from dovetail.teams import GatheredItem, JobContext, Pipeline, Reject, Team

ITEMS = 3
BAD_EVERY = 250


def is_bad(number: int) -> bool:
    return number % BAD_EVERY == 7


def is_packed(number: int) -> bool:
    return number % 2 == 0


def is_put_off(number: int) -> bool:
    return number % 40 == 5


def is_given_up(number: int) -> bool:
    return number % 100 == 33


def lingers(number: int) -> bool:
    """Few, because each keeps a process until it is cancelled."""
    return number % 100 == 21 and number < 600


def sort_out(job: int) -> int:
    if is_bad(job):
        raise Reject(f"{job} is bad")
    return job


def pack(job: int) -> list[int]:
    return [job * ITEMS + item for item in range(ITEMS)]


def wait(job: int, context: JobContext) -> int:
    if is_put_off(job) and context.attempt == 1:
        raise ConnectionError(f"{job} is too early")
    while lingers(job) and not context.cancelled:
        time.sleep(0.05)
    return job


def send(job: int, context: JobContext) -> int:
    if is_given_up(job):
        raise ConnectionError(f"{job} has no address")
    if job % 20 == 3 and context.attempt == 1:
        raise ConnectionError(f"{job} did not get through")
    return job


def bill(items: list[GatheredItem]) -> int:
    if len(items) != ITEMS:
        raise Reject(f"{len(items)} items")
    return sum(one["ok"] for one in items)


def graph(name: str, *, delays: bool) -> Pipeline:
    quick = {"workers": 2, "backoff": "10ms", "attempts": 2}
    first, packing = Team("sort", sort_out, **quick), Team("pack", pack, **quick)  # type: ignore[arg-type]
    # Longer than a pause that is spent in memory.
    slow = {**quick, **({"backoff": "2100ms"} if delays else {"backoff_max": "1s"})}
    # A job that lingers is a likely one to be killed.
    slow |= {"attempts": 10, "timeout": "1h"}
    waiting, last = Team("wait", wait, **slow), Team("send", send, **quick)  # type: ignore[arg-type]
    first.route_to(is_packed, packing, waiting)
    packing.spray_to(last)
    waiting.pipe_to(last, after="500ms" if delays else 0)
    billing = Team("bill", bill, **quick)  # type: ignore[arg-type]
    last.gather_to(billing, within="30m")
    return Pipeline(name, first, packing, waiting, last, billing)


def expected(team: str, jobs: int) -> Counter[str]:
    """The ids that end at a team, each once."""
    good = [n for n in range(jobs) if not is_bad(n)]
    packed = [n for n in good if is_packed(n)]
    match team:
        case "sort":
            return Counter(f"w{n}" for n in range(jobs))
        case "pack" | "bill":
            return Counter(f"w{n}" for n in packed)
        case "wait":
            return Counter(f"w{n}" for n in good if not is_packed(n))
    items = [f"w{n}/{item}" for n in packed for item in range(ITEMS)]
    return Counter(items + [f"w{n}" for n in good if not is_packed(n) and not lingers(n)])


def expected_cancelled(jobs: int) -> set[str]:
    """The ids that end in `wait` because they are cancelled."""
    return {f"w{n}" for n in range(jobs) if lingers(n)}


def expected_failures(team: str, jobs: int) -> set[str]:
    """The ids that a team gives up, whatever is killed."""
    good = [n for n in range(jobs) if not is_bad(n)]
    if team == "sort":
        return {f"w{n}" for n in range(jobs) if is_bad(n)}
    if team == "wait":
        return expected_cancelled(jobs)
    if team != "send":
        return set()
    packed = [n for n in good if is_packed(n)]
    items = {f"w{n}/{i}" for n in packed for i in range(ITEMS) if is_given_up(n * ITEMS + i)}
    return items | {f"w{n}" for n in good if not is_packed(n) and is_given_up(n)}


def expected_marks(jobs: int, *, delays: bool) -> int:
    """How many records say that a job is tried again later."""
    good = [n for n in range(jobs) if not is_bad(n) and not is_packed(n)]
    return sum(map(is_put_off, good)) if delays else 0


kills = graph("kills", delays=True)
plain = graph("plain", delays=False)
