"""Times and durations as people write them, in milliseconds."""

import re
from datetime import datetime, timedelta
from typing import Final

from dovetail.errors import InvalidInput
from dovetail.settings import parse_duration_ms
from dovetail.timeline.message import TIME_MS_MAX

#: A number with its unit.
_PART: Final = re.compile(r"\d+(?:\.\d+)?(?:ms|[smhdw])")

#: `"30s"`, `"1h30m"`, a `timedelta`, or seconds.
Duration = str | timedelta | float | int
#: A `datetime` (one without a zone is in that of this machine), or seconds since the epoch.
Moment = datetime | float | int


def duration_ms(given: Duration) -> int:
    """Raises `InvalidInput` if it cannot be read, or is negative."""
    if isinstance(given, str):
        parts = _PART.findall(given)
        if not parts or "".join(parts) != given.replace(" ", ""):
            raise InvalidInput(f"{given!r} is not a duration; write 250ms, 30s, 5m or 1h30m")
        return sum(map(parse_duration_ms, parts))
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    return _ms(seconds, f"{given!r} is not a duration")


def moment_ms(given: Moment) -> int:
    """Raises `InvalidInput` if it lies before 1970, or cannot be read."""
    refusal = f"{given!r} is not a time since 1970"
    try:
        seconds = given.timestamp() if isinstance(given, datetime) else given
    except (ValueError, OverflowError, OSError) as error:
        # The first and last days of the calendar, in some zones.
        raise InvalidInput(f"{refusal}: {error}") from error
    return _ms(seconds, refusal)


def _ms(seconds: object, refusal: str) -> int:
    """Raises `InvalidInput` with the refusal unless it is a number from 0 on."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < TIME_MS_MAX:
        raise InvalidInput(f"{refusal}; seconds are a number from 0 on")
    return round(seconds * 1000)
