"""The codec of Kafka's wire protocol: bytes in, typed messages out, and back.

    messages/         every message, declared once as a dataclass
    schema.py         how a declaration's annotations give its wire format
    decoding.py       generates a decoder for each message and version from the declaration
    encoding.py       generates the encoders in the same way
    primitives.py     varints, tag sections, and the errors of malformed frames
    headers.py        the headers of requests and responses
    frames.py         frames to messages and back: combines all of these
    apis.py           which requests are answered, in which versions: the one table
    error_codes.py    Kafka's error codes and our errors: the one table
    subscription.py   a consumer's subscription, from what it sends when it joins a group

The codec is pure. It knows neither sockets nor topics, and a record batch passes through it as a
slice of bytes (`dovetail.record_batch` opens one).

Promises: a frame raises nothing but `ProtocolViolation`, takes no more memory than a small multiple
of its own size, and its batches are never copied. `wire` limits the size of a frame; `log` checks
checksums and offsets inside batches.
"""
