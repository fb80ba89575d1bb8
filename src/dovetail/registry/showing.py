"""Payloads with schemas as JSON text, for people who look at a topic; run in a process of its own.

    python -m dovetail.registry.showing < {"registry": URL, "topic": T, "parts": {NAME: base64}}
    → {NAME: {"schema": 7, "kind": "avro", "text": "{...}", "trouble": null}}

A few bytes can stand for a huge value (a list of a billion nulls takes six), and whoever writes to
a topic chooses them. So the process has a limit of memory and of time, and its end hurts nobody.

Avro is read by the schema that the payload names, with the schemas that this one refers to; JSON is
shown as it is; Protobuf needs a registry that gives schemas as descriptors (`format=serialized`).
"""

import base64
import gc
import json
import resource
import sys
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

import msgspec

from dovetail.errors import DovetailError, InvalidInput
from dovetail.registry.framing import HEAD_BYTES, message_of, schema_id_of
from dovetail.registry.payloads import Registry, decoder, told

#: Memory for the libraries (about 100 MiB), and for a value much larger than a screen.
MEMORY_BYTES_MAX = 384 * 1024 * 1024
PROCESSOR_S_MAX = 5
#: Text for a page; larger values are for a consumer.
TEXT_CHARACTERS_MAX = 1024 * 1024


class ReadBySchema(msgspec.Struct, frozen=True):
    """A key or value by its schema, as JSON text; `trouble` is why there is none."""

    schema: int | None
    kind: str | None = None
    text: str | None = None
    trouble: str | None = None


def show(registry: Registry, topic: str, data: bytes) -> ReadBySchema:
    """The value that the bytes are, or why it cannot be shown."""
    number: int | None = None
    kind: str | None = None
    try:
        number = schema_id_of(data)
        schema = told(registry, lambda: registry.client().get_schema(number))
        kind = (schema.schema_type or "AVRO").lower()
        text = _text(registry, topic, kind, data, number)
    except DovetailError as error:
        return ReadBySchema(number, kind, None, str(error))
    if len(text) > TEXT_CHARACTERS_MAX:
        trouble = f"the value is {len(text)} characters long; read it with a consumer"
        return ReadBySchema(number, kind, None, trouble)
    return ReadBySchema(number, kind, text)


def _text(registry: Registry, topic: str, kind: str, data: bytes, number: int) -> str:
    if kind == "avro":
        value = decoder(registry, topic, "avro")(data)
        return json.dumps(value, default=_plain, ensure_ascii=False)
    if kind == "json":
        return data[HEAD_BYTES:].decode(errors="replace")
    if kind == "protobuf":
        return _protobuf(registry, data, number)
    raise InvalidInput(f"a schema of kind {kind} is shown by no library that is known here")


def _plain(value: Any) -> Any:
    """What JSON has no word for, as people write it."""
    if isinstance(value, bytes):
        return value.decode("latin-1") if value.isascii() else "0x" + value.hex()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def _protobuf(registry: Registry, data: bytes, number: int) -> str:
    # It has no types of its own.
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pool,
        json_format,
        message_factory,
    )

    def read() -> Any:
        pool = descriptor_pool.DescriptorPool()
        client = registry.client()
        _add(client, pool, "schema.proto", client.get_schema(number, fmt="serialized"))
        (first, *inner), at = message_of(data)
        file = pool.FindFileByName("schema.proto")
        message = list(file.message_types_by_name.values())[first]
        for place in inner:
            message = message.nested_types[place]
        value = message_factory.GetMessageClass(message)()
        value.ParseFromString(data[at:])
        return json_format.MessageToJson(value, preserving_proto_field_name=True)

    text: str = told(registry, read)
    return text


def _add(client: Any, pool: Any, name: str, schema: Any) -> None:
    """The file of a schema, under this name, and those that it imports."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.schema_str))
    file.name = name
    references = {one.name: one for one in schema.references or ()}
    for wanted in file.dependency:
        if wanted in references:
            at = references[wanted]
            found = client.get_version(at.subject, at.version, True, "serialized")
            _add(client, pool, wanted, found.schema)
        else:
            # One of Protobuf's own, such as a timestamp: known once its module is loaded.
            import_module(wanted.removesuffix(".proto").replace("/", ".") + "_pb2")
            own = descriptor_pool.Default()
            pool.AddSerializedFile(own.FindFileByName(wanted).serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())


def main() -> None:
    """Answers the one question on standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S_MAX, PROCESSOR_S_MAX))
    # A value of many objects is built once, and looking for garbage would take most of the time.
    gc.disable()
    asked = json.load(sys.stdin)
    registry = Registry(asked["registry"])
    parts: Mapping[str, str] = asked["parts"]
    found = {
        name: show(registry, asked["topic"], base64.b64decode(data)) for name, data in parts.items()
    }
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
