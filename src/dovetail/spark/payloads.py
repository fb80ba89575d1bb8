"""Payloads of a schema registry as columns.

There are two ways to decode a topic's `key` or `value`:

- *By Spark's own functions*, in Java: `from_avro` and `from_protobuf` (packages `spark-avro` and
  `spark-protobuf`) know payloads but no registry. `schema_id` and `payload` split off the leading
  bytes, and `Registry` supplies the schema:

      number, schema = registry.latest_schema("orders-value")
      orders.where(schema_id("value") == number).select(from_avro(payload("value"), schema))

- *By Confluent's library*, in Python, without a package: `decoded` reads each row by the schema
  that it names, whichever it is; `encoded` writes.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.registry.framing import HEAD_BYTES, MAGIC, message_prefix
from dovetail.registry.payloads import Kind, Registry, decoder, encoder

if TYPE_CHECKING:
    from pyspark.sql import Column

_REST_MAX = 0x7FFFFFFF


def schema_id(column: "Column | str") -> "Column":
    """The number of the schema in front of each payload; null where there is none."""
    from pyspark.sql import functions as f

    data = _column(column)
    number = f.conv(f.hex(f.substring(data, 2, HEAD_BYTES - 1)), 16, 10).cast("bigint")
    return f.when(_headed(data), number)


def payload(column: "Column | str", *, message: Sequence[int] | None = None) -> "Column":
    """What is behind the head, for `from_avro` and `from_protobuf`; null where there is none.

    For Protobuf `message` is the place of the message in its schema, [0] for the first; the payload
    of another message is null.
    """
    from pyspark.sql import functions as f

    data, prefix = _column(column), message_prefix(message)
    begin = HEAD_BYTES + len(prefix) + 1
    fits = f.substring(data, HEAD_BYTES + 1, len(prefix)) == f.lit(prefix)
    wanted = _headed(data) if message is None else _headed(data) & fits
    return f.when(wanted, f.substring(data, begin, _REST_MAX))


def decoded(
    column: "Column | str", returns: str, *, registry: Registry, topic: str, kind: Kind
) -> "Column":
    """The values of Avro or JSON payloads, each read by the schema that it names.

    `returns` is a type of Spark, as `struct<sku:string,count:int>`; a field that a value does not
    have is null. A payload that is not what its number says fails the query.
    """
    from pyspark.sql import functions as f

    made: list[Callable[[bytes | None], Any]] = []

    def decode(data: Any) -> Any:
        # Made in the worker, once: a client of a registry does not travel.
        if not made:
            made.append(decoder(registry, topic, kind))
        return made[0](None if data is None else bytes(data))

    # A lambda: Spark reads annotations of a function as its own.
    return f.udf(lambda data: decode(data), returns)(_column(column))  # noqa: PLW0108


def encoded(
    column: "Column | str", *, registry: Registry, topic: str, register: bool = True, **schema: Any
) -> "Column":
    """Values as payloads, by a schema: `avro=` or `json=` and its text (see `registry.encoder`)."""
    from pyspark.sql import functions as f

    made: list[Callable[[Any], bytes | None]] = []

    def encode(value: Any) -> Any:
        if not made:
            made.append(encoder(registry, topic, register=register, **schema))
        return made[0](value.asDict(recursive=True) if hasattr(value, "asDict") else value)

    return f.udf(lambda value: encode(value), "binary")(_column(column))  # noqa: PLW0108


def _column(column: "Column | str") -> "Column":
    from pyspark.sql import functions as f

    return f.col(column) if isinstance(column, str) else column


def _headed(data: "Column") -> "Column":
    from pyspark.sql import functions as f

    first = f.substring(data, 1, 1) == f.lit(bytes([MAGIC]))
    return first & (f.length(data) >= HEAD_BYTES)
