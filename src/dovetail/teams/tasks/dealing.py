"""Which task serves which partitions; pure."""

from collections.abc import Sequence

from dovetail.teams.tasks.attempt import Share


def units_of(shares: Sequence[Share]) -> list[list[Share]]:
    """What one task must serve together: all of a team that has a limit (`allowance`)."""
    found: dict[object, list[Share]] = {}
    for number, share in enumerate(shares):
        together = share.stage.policy.limited and not share.gathers
        found.setdefault(share.stage.team if together else number, []).append(share)
    return list(found.values())


def dealt(units: Sequence[Sequence[Share]], count: int) -> dict[int, list[Share]]:
    """The partitions of each task: each unit goes to the one that has the fewest."""
    tasks: dict[int, list[Share]] = {number: [] for number in range(count)}
    for unit in sorted(units, key=len, reverse=True):
        min(tasks.values(), key=len).extend(unit)
    return tasks
