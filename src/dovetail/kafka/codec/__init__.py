"""The codec of Kafka's wire protocol: bytes in, typed messages out, and back.

    messages/         every message, declared once as a dataclass
    schema.py         how a declaration carries its wire format in its annotations
    decoding.py       a decoder for each message and version, made from the declaration
    encoding.py       the encoders, made the same way
    primitives.py     varints, tag sections, and the words for what is wrong with a frame
    headers.py        what stands before the body of a request or response
    frames.py         frames to messages and back: all of it put together
    apis.py           which requests are answered, in which versions: the one table
    error_codes.py    Kafka's error codes and our errors: the one table
    subscription.py   which topics a consumer wants, from what it says when it joins a group

The codec is pure. It knows neither sockets nor topics, and a record batch passes through it as a
slice of bytes (`dovetail.record_batch` opens one).

It promises that no frame raises anything but `ProtocolViolation`, that none takes more memory than
a small multiple of its own size, and that batches are never copied. The size of a frame is limited
by `wire`; checksums and offsets inside batches are checked by `log`.
"""
