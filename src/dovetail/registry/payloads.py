"""Values to bytes with the number of a schema in front, and back.

`encoder` and `decoder` return plain functions: the outbox takes the first as `encode`, a team's
function calls them itself (`codec="raw"`), `spark/payloads.py` makes columns of them. Each caches
the registry's answers, so a registry that is down stops a process only at a schema that it has not
seen.

Promise: a value that does not fit its schema, or bytes that do not fit their number, raise
`InvalidInput`; a registry that does not answer raises `Unavailable`, and the same call can be
retried.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any, Literal

from dovetail.errors import DovetailError, InvalidInput, Unavailable

Kind = Literal["avro", "json", "protobuf"]
Part = Literal["key", "value"]

#: What a registry says of a request that is wrong; what else it says of one passes, or is said by
#: something that stands before it: a gateway that redirects, or is slow, or has had too many.
_REFUSALS = range(400, 500)
_PASSING = (408, 425, 429)
#: The library's code of an error that is not in a registry's words.
_NO_REGISTRY = -1
#: The library waits for an answer for ever. It asks four times, so a call ends within two minutes.
ANSWER_S_MAX = 15
#: The library's module that asks; the others read and write payloads.
_ASKING = "schema_registry_client"

#: By process, address and settings: they keep connections and the schemas that they have seen.
_clients: dict[tuple[int, str, str], Any] = {}


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a registry is; equal ones are the same.

    `settings` are those of Confluent's client: `basic.auth.user.info`, `ssl.ca.location`,
    `bearer.auth.token`, `timeout` (seconds; 15 unless given) ...
    """

    url: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def client(self) -> Any:
        """Confluent's client, one for this process.

        Raises `InvalidInput`, `Unavailable` if it is not installed.
        """
        library = _library("")
        # A process that was forked must not share its parent's connections.
        key = (os.getpid(), self.url, repr(sorted(self.settings.items())))
        try:
            if key not in _clients:
                settings = {"url": self.url, "timeout": ANSWER_S_MAX, **self.settings}
                _clients[key] = library.SchemaRegistryClient(settings)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"the registry {self.url!r}: {error}") from error
        return _clients[key]

    def latest_schema(self, subject: str) -> tuple[int, str]:
        """Number and text of a subject's last version. Raises `InvalidInput`, `Unavailable`."""
        found = told(self, lambda: self.client().get_latest_version(subject))
        return found.schema_id, found.schema.schema_str

    def schema(self, number: int) -> str:
        """The text of a schema. Raises `InvalidInput`, `Unavailable`."""
        text: str = told(self, lambda: self.client().get_schema(number)).schema_str
        return text


def encoder(
    registry: Registry,
    topic: str,
    *,
    avro: str | None = None,
    json: str | None = None,
    protobuf: Any = None,
    part: Part = "value",
    register: bool = True,
) -> Callable[[Any], bytes | None]:
    """A function from values to bytes; None, a tombstone, stays None.

    `avro` and `json` are schemas as text, for values of dicts and lists; `protobuf` is a class that
    Protobuf's compiler has made, for its messages. The schema is registered under `TOPIC-value`
    with the first value, unless `register` is False: then the last version there is used.

    Raises `InvalidInput` for a schema that is none, or none of the three.
    """
    kind, schema = _one_of(avro=avro, json=json, protobuf=protobuf)
    library = _library(kind)
    settings: dict[str, Any] = {
        "auto.register.schemas": register,
        "subject.name.strategy": _library("").topic_subject_name_strategy,
    }
    if not register:
        settings["use.latest.version"] = True
    client = registry.client()

    def make() -> Any:
        if kind == "avro":
            return library.AvroSerializer(client, schema, conf=settings)
        if kind == "json":
            return library.JSONSerializer(schema, client, conf=settings)
        return library.ProtobufSerializer(schema, client, settings)

    serialise = told(registry, make)
    context = _context(topic, part)
    return lambda value: (
        None if value is None else told(registry, lambda: serialise(value, context))
    )


def decoder(
    registry: Registry, topic: str, kind: Kind, *, protobuf: Any = None, part: Part = "value"
) -> Callable[[bytes | None], Any]:
    """A function from bytes to values; None stays None.

    Avro and JSON are read by the schema that the bytes name, into dicts and lists; Protobuf into
    messages of the class `protobuf`.
    """
    library, client = _library(kind), registry.client()

    def make() -> Any:
        if kind == "avro":
            return library.AvroDeserializer(client)
        if kind == "json":
            return library.JSONDeserializer(None, schema_registry_client=client)
        return library.ProtobufDeserializer(protobuf, {}, client)

    if (kind == "protobuf") is not (protobuf is not None):
        raise InvalidInput(
            "give the class of the message, `protobuf`, with kind 'protobuf' and only then"
        )
    deserialise = told(registry, make)
    context = _context(topic, part)
    return lambda data: None if data is None else told(registry, lambda: deserialise(data, context))


def _one_of(**schemas: Any) -> tuple[Kind, Any]:
    given = [(kind, schema) for kind, schema in schemas.items() if schema is not None]
    if len(given) != 1:
        raise InvalidInput(f"give one of {', '.join(schemas)}: the schema of the values")
    kind, schema = given[0]
    return kind, schema  # type: ignore[return-value]


def _library(kind: str) -> Any:
    """Confluent's modules. Raises `Unavailable` where they are not installed."""
    from importlib import import_module

    names = {"": "", "avro": ".avro", "json": ".json_schema", "protobuf": ".protobuf"}
    if kind not in names:
        raise InvalidInput(f"{kind!r} is not a kind of schema; choose avro, json or protobuf")
    try:
        return import_module(f"confluent_kafka.schema_registry{names[kind]}")
    except ImportError as error:
        raise Unavailable(
            f"schemas need more libraries: pip install 'dovetailmq[registry]' ({error})"
        ) from error


def _context(topic: str, part: Part) -> Any:
    return _library("").SerializationContext(topic, part)


def told(registry: Registry, call: Callable[[], Any]) -> Any:
    """What a call of the library returns, its errors as ours."""
    try:
        return call()
    except DovetailError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if _passes(error):
            raise Unavailable(f"the registry {registry.url}: {reason}") from error
        raise InvalidInput(f"cannot apply the schemas of {registry.url}: {reason}") from error


def _passes(error: Exception) -> bool:
    """Whether this is about the registry or the way to it, and not about a value or a schema."""
    status = getattr(error, "http_status_code", None)
    if status is not None:
        no_registry = getattr(error, "error_code", None) == _NO_REGISTRY
        return status not in _REFUSALS or status in _PASSING or no_registry
    # What its HTTP client raises is of another family, and of no registry's making.
    family = type(error).__module__.split(".")[0]
    if isinstance(error, OSError) or family in {"httpx", "httpx2", "httpcore", "httpcore2"}:
        return True
    # An answer that is not JSON, such as the page of a gateway.
    return isinstance(error, ValueError | RecursionError) and any(
        str(frame.f_globals.get("__name__", "")).endswith(_ASKING)
        for frame, _ in walk_tb(error.__traceback__)
    )
