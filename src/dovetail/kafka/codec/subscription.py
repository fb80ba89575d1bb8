"""What a consumer says about itself when it joins a group: the topics it wants.

The format belongs to the clients (Kafka's "consumer" protocol); the log room treats it as opaque
and asks here only to protect positions of topics that are being consumed.
"""

import struct

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def topics_of(protocol_type: str, metadata: bytes) -> frozenset[str] | None:
    """The subscribed topics, or None if these bytes are not a consumer's subscription."""
    if protocol_type != "consumer":
        return None
    try:
        (count,) = _INT32.unpack_from(metadata, 2)
        at = 2 + _INT32.size
        if not 0 <= count <= (len(metadata) - at) // _INT16.size:
            return None
        topics = set()
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, at)
            at += _INT16.size
            if not 0 <= length <= len(metadata) - at:
                return None
            topics.add(metadata[at : at + length].decode())
            at += length
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError):
        return None
