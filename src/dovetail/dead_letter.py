"""The headers that mark a record or message as a dead letter, and say why it died.

Teams, shared streams and timelines write them; the console and `dovetail stream dead` read them.
"""

from typing import Final

KIND: Final = "dovetail-kind"
REASON: Final = "dovetail-reason"
TRACEBACK: Final = "dovetail-traceback"
ATTEMPTS: Final = "dovetail-attempts"
#: Where it came from: a topic, or `timeline:NAME`; its place there, and the key that it had.
SOURCE: Final = "dovetail-source"
PLACE: Final = "dovetail-source-place"
SOURCE_KEY: Final = "dovetail-source-key"
#: The letter of a timeline: the same however often it is written, and given to no other.
ID: Final = "dovetail-dead-id"

#: What a replay leaves out, beside the count of attempts.
OF_THE_FAILURE: Final = frozenset({KIND, REASON, TRACEBACK, SOURCE, PLACE, SOURCE_KEY, ID})
