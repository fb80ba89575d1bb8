"""Requests to effects on the log and its groups, and back to responses.

One module a noun. A handler takes the `Backend`, the `Call` and the decoded body, and returns the
response's body; what goes wrong becomes one of Kafka's error codes (`outcome.py`), for the item it
concerns. `front.py` holds the table of handlers and is what the wire room calls with a frame.
"""

from dovetail.kafka.handlers.backend import Backend, BrokerAddress, Call, KafkaMetrics
from dovetail.kafka.handlers.front import FrontDoor

__all__ = ["Backend", "BrokerAddress", "Call", "FrontDoor", "KafkaMetrics"]
