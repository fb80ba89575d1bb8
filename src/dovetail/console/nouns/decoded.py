"""One message of a topic by the schemas of a registry, as JSON text."""

import asyncio
import base64
import json
import sys

import msgspec
from msgspec import Struct

from dovetail.admin.records import READ_BYTES_MAX, ReadLimits, Span, read
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import InvalidInput, NotFound, TopicUnknown, Unavailable
from dovetail.registry.showing import ReadBySchema

#: The process has to start, to ask the registry, and to read.
ANSWER_S_MAX = 20.0
#: What a page waits for; a value beyond it is for a consumer.
DATA_BYTES_MAX = 4 * 1024 * 1024


class MessageDecoded(Struct, frozen=True):
    """A message by its schemas; None stands for null, and for what has no number of a schema."""

    topic: str
    partition: int
    offset: int
    key: ReadBySchema | None
    value: ReadBySchema | None


async def show_decoded(desk: Desk, asked: Asked[None, None]) -> MessageDecoded:
    """Needs `http.schema_registry`, and Confluent's library where the node runs."""
    url = desk.settings.http.schema_registry
    if not url:
        raise NotFound("this node knows no schema registry; set http.schema_registry to its URL")
    topic, partition, offset = (
        asked.path["topic"],
        asked.number("partition"),
        asked.number("offset"),
    )
    parts = await _parts(desk, topic, partition, offset)
    async with desk.decoding:
        found = await _in_a_process({"registry": url, "topic": topic, "parts": parts})
    return MessageDecoded(topic, partition, offset, found.get("key"), found.get("value"))


async def _parts(desk: Desk, topic: str, partition: int, offset: int) -> dict[str, str]:
    """What there is to decode, in base64. Raises `NotFound`, `TopicUnknown`, `InvalidInput`."""
    if partition >= (count := desk.insight.topic(topic).partitions):
        raise TopicUnknown(f"topic {topic!r} has no partition {partition}, only 0 to {count - 1}")
    limits = ReadLimits(scan=1, keep=1, bytes=READ_BYTES_MAX)
    reading = await desk.kafka.run(read, topic, [Span(partition, offset, offset + 1)], limits)
    record = next((one for one in reading.records if one.offset == offset), None)
    if record is None:
        raise NotFound(f"there is no message {offset} in partition {partition} of {topic!r}")

    framed = {
        name: data
        for name, data in (("key", record.key), ("value", record.value))
        if data is not None and data[:1] == b"\0"
    }
    if sum(map(len, framed.values())) > DATA_BYTES_MAX:
        raise InvalidInput(f"the message is larger than {DATA_BYTES_MAX} bytes: use a consumer")
    return {name: base64.b64encode(data).decode() for name, data in framed.items()}


async def _in_a_process(question: dict[str, object]) -> dict[str, ReadBySchema]:
    """What `registry/showing.py` answers. Raises `InvalidInput`, `Unavailable`."""
    if not question["parts"]:
        return {}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dovetail.registry.showing"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            answer, errors = await process.communicate(json.dumps(question).encode())
    except TimeoutError as error:
        raise Unavailable(f"the message was not decoded within {ANSWER_S_MAX:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise InvalidInput(
            "the message cannot be decoded within the limits of memory and time: "
            f"{last or f'ended with {process.returncode}'}"
        )
    return msgspec.json.decode(answer, type=dict[str, ReadBySchema])


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/topics/{topic}/messages/{partition}/{offset}/decoded",
        show_decoded,
        "Show a message by its schemas",
        MessageDecoded,
        numbers=("partition", "offset"),
    ),
)
