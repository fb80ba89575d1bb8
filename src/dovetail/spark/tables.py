"""The options of a table of Spark's catalog: `CREATE TABLE … USING dovetail OPTIONS (…)`.

The problem. Spark passes a Python source the options of a table once, when it asks for the schema
(`CREATE TABLE`). It keeps them in its catalog and passes none when the table is read or written.

The choice. Spark does pass back the schema. So the options are in the schema, as metadata of the
column `timestampType`, in each table that was created without a list of columns.

- *Reading*, in batches and streams, gets the schema of the table itself. Options of the query
  (`spark.read.options(…).table(…)`, `SELECT … FROM t WITH (…)`) override those of the table.
- *Writing* gets the schema of the rows. If the statement does not name the column, Spark adds the
  table's. If the rows already have it, because they were read from another table, it may be that of
  the *other* table, whose topic would be written to. But rows that were read have a type of
  timestamp, and rows that Spark completed have null. So a write that takes its target from the
  schema refuses rows with anything else (`check_rows`); one that names brokers itself
  (`df.write.format("dovetail").options(…)`) does not look at the schema.
- *A stream that writes to a table* (`toTable`) gets the schema of its rows and nothing is added, so
  it must name brokers and topic itself.

Metadata of columns travels further than options do, for example into the files that a query makes.
So a secret is refused there; `kafka.sasl.password.env` names an environment variable instead.
"""

import json
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from dovetail.errors import InvalidInput
from dovetail.spark.given_options import ADDRESSES
from dovetail.spark.option_list import BY_NAME, FROM_ENVIRONMENT

#: The column whose metadata has the options: no writer has a use for it.
HOLDER = "timestampType"
_METADATA = "dovetail.options"
#: Spark gives options of `CREATE TABLE` twice, once with this in front; the rest are properties.
_CREATED = "option."


def created_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created; None: none is. Raises `InvalidInput`."""
    if "provider" not in given:
        return None
    options = {
        name[len(_CREATED) :]: value for name, value in given.items() if name.startswith(_CREATED)
    }
    for name in options:
        known = BY_NAME.get(name.lower())
        if known is not None and known.secret:
            raise InvalidInput(
                f"option {known.name!r} of a table would be in its schema, and in the files that "
                f"are made of it; set {known.name + FROM_ENVIRONMENT!r} to the name of an "
                "environment variable of the driver that has it"
            )
    return options


def overlaid(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """Options of two places; those `above` count, whatever the case of their names."""
    return {name.lower(): value for given in (below, above) for name, value in given.items()}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table with its options."""
    text = json.dumps(dict(options), sort_keys=True)
    return StructType(
        [
            StructField(one.name, one.dataType, one.nullable, {_METADATA: text})
            if one.name == HOLDER
            else one
            for one in schema.fields
        ]
    )


def options_in(schema: StructType) -> dict[str, str]:
    """The options in a schema; empty if it is not that of a table. Raises `InvalidInput`."""
    for one in schema.fields:
        if one.name == HOLDER and _METADATA in (one.metadata or {}):
            found = json.loads(one.metadata[_METADATA])
            return {str(name): str(value) for name, value in found.items()}
    return {}


def check_named(given: Mapping[str, str], *, to: str) -> None:
    """Raises `InvalidInput` if no option says what to read or to write."""
    if not names_brokers(given):
        raise InvalidInput(
            f"no option names the brokers, or what to {to}. A table has to be created "
            "without a list of columns (CREATE TABLE t USING dovetail OPTIONS (...)); a stream "
            "that writes to a table has to name kafka.bootstrap.servers and topic itself"
        )


def names_brokers(given: Mapping[str, str]) -> bool:
    """Whether options say where the brokers are."""
    return any(name.lower() in ADDRESSES for name in given)


def check_rows(batch: pa.RecordBatch) -> None:
    """Raises `InvalidInput` for rows that were read from a table; see above."""
    column = batch.column(HOLDER)
    if column.null_count != len(column):
        raise InvalidInput(
            "rows that were read from a topic do not say which table they go to; name the columns: "
            "INSERT INTO t (key, value) SELECT key, value FROM ..."
        )
