"""Times and durations as people write them, in milliseconds."""

from datetime import datetime, timedelta

from dovetail.errors import InvalidInput
from dovetail.settings import parse_duration_ms

#: `"30s"`, a `timedelta`, or seconds.
Duration = str | timedelta | float | int
#: A `datetime` (one without a zone is in that of this machine), or seconds since the epoch.
Moment = datetime | float | int


def duration_ms(given: Duration) -> int:
    """Raises `InvalidInput` if it cannot be read, or is negative."""
    if isinstance(given, str):
        found = parse_duration_ms(given)
    elif isinstance(given, timedelta):
        found = round(given.total_seconds() * 1000)
    else:
        found = round(given * 1000)
    if found < 0:
        raise InvalidInput(f"{given!r} is not a duration: it is negative")
    return found


def moment_ms(given: Moment) -> int:
    """Raises `InvalidInput` if it lies before 1970."""
    seconds = given.timestamp() if isinstance(given, datetime) else given
    if seconds < 0:
        raise InvalidInput(f"{given!r} lies before 1970")
    return round(seconds * 1000)
