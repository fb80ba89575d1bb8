"""Archives a topic to a table of Apache Iceberg, and reads such a table; through PyIceberg.

Promise: each record of the topic is in the table exactly once, whichever process is killed and
however many archive the topic at the same time. A file lies in one day (or hour).

How. Spark's tasks write Parquet files below the table's location. A file belongs to the table when
a commit names it, and not before. The same commit sets the property `dovetail.positions`, the
offset behind the last archived record of each partition, so the two never disagree. Iceberg accepts
a commit if the table is as it was when the commit was prepared. PyIceberg would prepare a refused
one again by itself, with the same files; here that is switched off, and the positions are read
first. If another process has archived these records meanwhile, ours are dropped.

Survives: a kill before the commit (no commit names its files; `remove_orphan_files` of any engine
deletes them) and after it; expired snapshots, since the positions are a property of the table; a
rewrite of its files by another engine.

Not here: Spark's own writer for Iceberg. It is a jar for one version of Spark, and 4.2 and 4.3 have
none.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dovetail.errors import InvalidInput, NotFound, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, Partition
from dovetail.spark.archive import Period
from dovetail.spark.offsets import from_document, limited, to_document

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession

    from dovetail.spark.options import ReadOptions

#: Properties of a table: its positions, as Spark's checkpoints write them, and the last commit.
POSITIONS, _LAST = "dovetail.positions", "dovetail.last-commit"
#: The catalog of a folder.
_CATALOG_FILE = "catalog.sqlite"
_NAMESPACE = "dovetail"
_RETRIES = "commit.retry.num-retries"
#: Refusals in a row of one commit; each is another process's commit.
_REFUSALS_MAX = 100
_PERIOD_MICROS: dict[Period, int] = {"day": 86_400_000_000, "hour": 3_600_000_000}
#: The column that groups rows into files; it is in their folders' names and not in the files.
_PERIOD_COLUMN = "_period"
#: Hadoop's names of file systems beside Iceberg's.
_SCHEMES = {"s3://": "s3a://"}
_TIMES = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is: in a local folder, which holds a catalog, or in a catalog of PyIceberg.

    With `catalog`, the name of one in PyIceberg's configuration, `name` is namespace.table.
    """

    name: str
    catalog: str | None = None

    @property
    def found(self) -> bool:
        """Whether it can only be a table of Iceberg, and no folder of Parquet files."""
        return self.catalog is not None or (Path(self.name) / _CATALOG_FILE).is_file()


@dataclass(frozen=True, slots=True)
class Archived:
    """What an archive has done: new rows, and the file that describes the table to any engine."""

    rows: int
    metadata: str


@dataclass(slots=True)
class _Job:
    """One run of an archive; its parts do not change."""

    spark: "SparkSession"
    options: "ReadOptions"
    given: Mapping[str, str]
    topic: str
    period: Period
    rows_max: int
    columns: Mapping[str, str]
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Files:
    """What Spark has written of a range: new files in a folder of their own."""

    folder: str
    paths: list[str]

    @property
    def commit(self) -> str:
        """A name for the commit that will name them."""
        return self.folder.rpartition("/")[2]


def archive(
    spark: "SparkSession",
    brokers: Brokers,
    topic: str,
    place: Place,
    *,
    period: Period = "day",
    rows_max: int = 1_000_000,
    columns: Mapping[str, str] | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Archived:
    """Appends the records that are not in the table yet; creates the table if there is none.

    `columns` are further ones, SQL expressions by their names; the table gets those that it does
    not have, and a column that became wider (int to long) is widened. `rows_max` bounds a commit.

    Raises `InvalidInput`, `Unavailable`.
    """
    from dovetail.spark.decoder import COLUMNS_WITH_HEADERS
    from dovetail.spark.options import ReadOptions
    from dovetail.spark.planning import check_loss, offsets_at, partitions_of

    taken = sorted(set(columns or {}) & {*COLUMNS_WITH_HEADERS.names, _PERIOD_COLUMN})
    if taken:
        raise InvalidInput(f"a column {taken[0]!r} is there already; give yours another name")
    given = {**brokers.for_tables(), "subscribe": topic}
    options = ReadOptions.of(given)
    job = _Job(spark, options, given, topic, period, rows_max, columns or {})
    with _opened(place, topic) as (catalog, name):
        table = _created(catalog, name, period)
        latest = offsets_at(options, partitions_of(options), LATEST)
        begun = start = _start(options, table, topic, latest)
        check_loss(options, start, latest)
        while True:
            ends = limited(start, latest, rows_max)
            if ends == start:
                return Archived(job.rows, table.metadata_location)
            files = _written(job, table, start, ends)
            start = ends
            if not files.paths:
                # Gaps alone: a commit without files would be one of positions that nothing guards.
                continue

            table = _committed(job, catalog, name, files, begun, ends)
            # Where another process has archived meanwhile, behind that.
            begun = start = _start(options, table, topic, latest)
            on_rows(job.rows)


def frame(spark: "SparkSession", place: Place, topic: str) -> "DataFrame":
    """The archived records of a topic, with headers. Raises `NotFound`, `InvalidInput`."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyspark.sql import functions as f

    from dovetail.spark.source import SPARK_SCHEMA_WITH_HEADERS

    with _opened(place, topic) as (catalog, name):
        try:
            table = catalog.load_table(name)
        except NoSuchTableError as error:
            raise NotFound(f"{place.name} has no table {'.'.join(name)}") from error
        tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise InvalidInput(
            f"rows of table {'.'.join(name)} were deleted and its files not rewritten yet; rewrite "
            "them (rewrite_data_files) and read again"
        )
    reader = spark.read.schema(SPARK_SCHEMA_WITH_HEADERS)
    paths = [_to_hadoop(task.file.file_path) for task in tasks]
    if not paths:
        return spark.createDataFrame([], SPARK_SCHEMA_WITH_HEADERS)
    return reader.parquet(*paths).where(f.col("topic") == topic)


@contextmanager
def _opened(place: Place, topic: str) -> "Iterator[tuple[Catalog, tuple[str, ...]]]":
    """The catalog, and the name of the table in it. Raises `Unavailable`, `InvalidInput`."""
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import RESTError
    except ImportError as error:
        raise Unavailable(
            "tables of Iceberg need PyIceberg: pip install 'dovetailmq[iceberg]'"
        ) from error

    if place.catalog is not None:
        parts = tuple(place.name.split("."))
        if len(parts) < 2:
            raise InvalidInput(f"{place.name!r} is not a table of a catalog; write namespace.table")
        try:
            named = load_catalog(place.catalog)
        except (ValueError, OSError, RESTError) as error:
            raise InvalidInput(f"PyIceberg's catalog {place.catalog!r}: {error}") from error
        with named as catalog:
            yield catalog, parts
        return

    if "://" in place.name:
        raise InvalidInput(
            f"{place.name} is not a local folder; name a catalog of PyIceberg (--catalog), and the "
            "table in it as namespace.table"
        )
    folder = Path(place.name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{folder / _CATALOG_FILE}"
    # Not `as_uri`: PyIceberg takes a %20 for three characters of a name.
    with SqlCatalog(_NAMESPACE, uri=uri, warehouse=f"file://{folder}") as catalog:
        yield catalog, (_NAMESPACE, topic)


def _created(catalog: "Catalog", name: tuple[str, ...], period: Period) -> "Table":
    """The table, as one whose refused commits PyIceberg does not repeat."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform, HourTransform

    schema = _schema()
    source = schema.find_field("timestamp").field_id
    cut = PartitionField(
        source_id=source,
        field_id=1000,
        transform={"day": DayTransform, "hour": HourTransform}[period](),
        name=f"timestamp_{period}",
    )
    catalog.create_namespace_if_not_exists(name[:-1])
    table = catalog.create_table_if_not_exists(
        name, schema, partition_spec=PartitionSpec(cut), properties={_RETRIES: "0"}
    )
    found = [str(one.transform) for one in table.spec().fields]
    if found != [period]:
        raise InvalidInput(
            f"table {'.'.join(name)} is partitioned by {', '.join(found) or 'nothing'}, not by "
            f"{period}; archive to a table of its own, or with --by as it is"
        )
    return table


def _schema() -> "Schema":
    """The columns of a topic; a table may have more."""
    from pyiceberg import types as t
    from pyiceberg.schema import Schema

    header = t.StructType(
        t.NestedField(10, "key", t.StringType(), required=False),
        t.NestedField(11, "value", t.BinaryType(), required=False),
    )
    columns = {
        "key": t.BinaryType(),
        "value": t.BinaryType(),
        "topic": t.StringType(),
        "partition": t.IntegerType(),
        "offset": t.LongType(),
        "timestamp": t.TimestamptzType(),
        "timestampType": t.IntegerType(),
        "headers": t.ListType(9, header, element_required=False),
    }
    return Schema(
        *(
            t.NestedField(number, name, kind, required=False)
            for number, (name, kind) in enumerate(columns.items(), 1)
        )
    )


def _positions(table: "Table") -> dict[Partition, int]:
    """Of all topics that are archived in the table. Raises `Damaged`."""
    return from_document(json.loads(table.properties.get(POSITIONS, "{}")))


def _start(
    options: "ReadOptions", table: "Table", topic: str, latest: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Where each partition is read from: new ones from their first record."""
    from dovetail.spark.planning import offsets_at

    known = {key: at for key, at in _positions(table).items() if key[0] == topic}
    new = [key for key in latest if key not in known]
    first = offsets_at(options, new, EARLIEST) if new else {}
    return {key: known.get(key, first.get(key, 0)) for key in latest}


def _written(
    job: _Job, table: "Table", start: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> _Files:
    """Files with the records of a range, each with those of one period."""
    from pyspark.sql import functions as f

    reader = job.spark.read.format("dovetail").options(**job.given, includeHeaders="true")
    bounds = {"startingOffsets": start, "endingOffsets": ends}
    rows = reader.options(**{k: json.dumps(to_document(v)) for k, v in bounds.items()}).load()
    for name, expression in job.columns.items():
        rows = rows.withColumn(name, f.expr(expression))
    # A number, because a date would be that of the session's time zone.
    micros = "unix_micros(timestamp)"
    begin = f.expr(f"{micros} - pmod({micros}, {_PERIOD_MICROS[job.period]})")

    folder = f"{table.location().rstrip('/')}/data/{uuid.uuid4().hex}"
    with _times_of_parquet(job.spark):
        dated = rows.withColumn(_PERIOD_COLUMN, begin)
        dated.write.partitionBy(_PERIOD_COLUMN).parquet(_to_hadoop(folder))
    found = job.spark.read.schema(rows.schema).parquet(_to_hadoop(folder)).inputFiles()
    made = f"{folder.rpartition('/')[2]}/"
    return _Files(folder, [f"{folder}/{unquote(path).rpartition(made)[2]}" for path in found])


@contextmanager
def _times_of_parquet(spark: "SparkSession") -> Iterator[None]:
    """Iceberg has no times of 96 bits, which Spark writes by itself."""
    before = spark.conf.get(_TIMES)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMES, str(before))


def _committed(
    job: _Job,
    catalog: "Catalog",
    name: tuple[str, ...],
    files: _Files,
    begun: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> "Table":
    """The table with the files, or as another process left it that has archived these records.

    Raises `Unavailable` if the table changes all the time, `InvalidInput` if columns do not fit.
    """
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    for _ in range(_REFUSALS_MAX):
        table = _not_repeating(catalog.load_table(name))
        known = _positions(table)
        if any(known.get(key, at) != at for key, at in begun.items()):
            # It is ours if the answer to our commit was lost.
            job.rows += _rows_added(table) if table.properties.get(_LAST) == files.commit else 0
            return table
        document = json.dumps(to_document({**known, **ends}))
        try:
            with table.transaction() as commit:
                _widen(commit, table, files.paths[0])
                commit.set_properties({POSITIONS: document, _LAST: files.commit})
                commit.add_files(files.paths, check_duplicate_files=False)
        except (CommitFailedException, CommitStateUnknownException):
            # Refused, or nobody knows: the positions tell.
            continue
        job.rows += _rows_added(table)
        return table
    raise Unavailable(
        f"table {'.'.join(name)} was changed by others {_REFUSALS_MAX} times in a row; try again"
    )


def _not_repeating(table: "Table") -> "Table":
    """A table whose refused commits PyIceberg does not repeat, whoever made it."""
    if table.properties.get(_RETRIES) != "0":
        with table.transaction() as commit:
            commit.set_properties({_RETRIES: "0"})
    return table


def _widen(commit: "Transaction", table: "Table", path: str) -> None:
    """Gives the table the columns of a file that it does not have. Raises `InvalidInput`."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.exceptions import ValidationError

    with table.io.new_input(path).open() as opened:
        found = pq.read_schema(opened)
    # What one file has in every row another may lack.
    optional = pa.schema([one.with_nullable(True) for one in found])
    try:
        with commit.update_schema() as update:
            update.union_by_name(optional)
    except (ValidationError, ValueError, TypeError) as error:
        raise InvalidInput(f"the columns do not fit the table {table.name()}: {error}") from error


def _rows_added(table: "Table") -> int:
    """By the last commit."""
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["added-records"] or 0)


def _to_hadoop(path: str) -> str:
    """A path of Iceberg for Spark, which has another name for some file systems."""
    for theirs, hadoops in _SCHEMES.items():
        if path.startswith(theirs):
            return hadoops + path[len(theirs) :]
    return path
