"""A crew that is given jobs at once, and waited for."""

import select
import time

from dovetail.teams.envelope import Job
from dovetail.teams.workers.crew import Crew, Ended


def run_crew(crew: Crew, given: list[Job], *, until: int = 0) -> list[Ended]:
    """The outcomes in the order of the jobs; or those that came, until so many are left."""
    for number, job in enumerate(given):
        crew.add(number, job)
    ended: dict[int, Ended] = {}
    while crew.in_hand > until:
        ended |= dict(crew.step(time.monotonic()))
        due_s = crew.due_s(now := time.monotonic())
        if crew.in_hand > until:
            said = select.poll()
            for one in crew.filenos():
                said.register(one, select.POLLIN)
            said.poll(None if due_s is None else max(0.0, due_s - now) * 1000)
    return [ended[number] for number in sorted(ended)]
