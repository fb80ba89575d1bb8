"""Which fault comes when: a plan that follows from a seed.

    kill     kill -9, and started again a moment later
    pause    SIGSTOP for longer than leases and timeouts, then SIGCONT: it wakes up unaware

Of the notifier's replicas the leader is hit; of Spark, the driver with its Java or one of its
Python workers. The time between two faults is enough for the program to come back.
"""

import random
from dataclasses import dataclass

#: What can be hit, how, and for how long it is away, in seconds.
FAULTS: dict[str, tuple[tuple[str, float], ...]] = {
    "relay": (("kill", 1.0), ("pause", 4.0)),
    "node": (("kill", 1.0), ("pause", 3.0)),
    "driver": (("kill", 1.0), ("pause", 4.0)),
    "worker": (("kill", 0.0),),
    "notifier": (("kill", 3.0), ("pause", 5.0)),
    "results": (("kill", 1.0), ("pause", 4.0)),
    "reminders": (("kill", 1.0), ("pause", 6.0)),
}
#: Room between two faults.
GAP_S = 3.5
#: The first fault finds everything at work, and the last ones find orders still coming.
FIRST_PART, LAST_PART = 0.25, 0.95


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to a program."""

    at_s: float
    target: str
    how: str
    away_s: float


def plan(seed: int, seconds: float, targets: tuple[str, ...]) -> tuple[Fault, ...]:
    """The faults of a run in which orders come for `seconds`: each target before one comes twice.

    A run that is too short for all targets gets those that the seed puts first.
    """
    if not targets:
        return ()
    dice = random.Random(seed)
    begin, end = FIRST_PART * seconds, LAST_PART * seconds
    count = max(1, int((end - begin) / GAP_S))
    order: list[str] = []
    while len(order) < count:
        order += dice.sample(targets, len(targets))
    step_s = (end - begin) / count
    faults = []
    for number, target in enumerate(order[:count]):
        how, away_s = dice.choice(FAULTS[target])
        at_s = begin + step_s * (number + dice.uniform(0.0, 0.5))
        faults.append(Fault(round(at_s, 1), target, how, away_s))
    return tuple(faults)


def story(seconds: float) -> tuple[Fault, ...]:
    """What happens in a run without chaos: the notifier that leads is killed once."""
    return (Fault(round(0.5 * seconds, 1), "notifier", "kill", 3.0),)
