"""Topics as Spark tables, for batches and streams; archive, replay and statistics.

    from dovetail.spark import session

    spark = session("orders")
    reader = spark.readStream.format("dovetail").option("bootstrap", "broker:9092")
    orders = reader.option("subscribe", "orders").load()

The driver decides which offsets a micro-batch has; the tasks fetch them and decode whole record
batches into Arrow columns. When writing, a task encodes Arrow columns into record batches whose
producer id, epoch and sequence number follow from the query, the micro-batch and the row, so that
the broker stores each row once however often Spark runs the task (`exactly_once.py`).

This room speaks the Kafka protocol alone, in versions that Kafka 3 and 4 support, so it also works
on a real Kafka. No node imports it: only its users need Spark, Arrow and Java
(`pip install 'dovetailmq[spark]'`).

    sessions.py         a Spark session with defaults for small micro-batches
    runtime.py          the Java and the Python that Spark runs on
    java_process.py     the Java process of a session: whether it is alive, and its end
    versions.py         what Spark 4.0 and 4.1 lack, and the substitutes
    option_list.py      every option, for the code and for docs/spark.md                    pure
    given_options.py    options as given, each parsed by its type
    options.py          the options of `format("dovetail")`, checked                        pure
    tables.py           the options of a table of the catalog, kept in its schema           pure
    offsets.py          the offsets of a batch, its tasks, and the lag of a stream          pure
    pushdown.py         which partitions and offsets the filters of a query leave           pure
    planning.py         the partitions and offsets of a query, with the brokers' answers
    source.py           `read` and `readStream`
    sink.py             `write` and `writeStream`
    exactly_once.py     why each row is stored once: producer ids, epochs, sequences        pure
    fetching.py         reads a range of offsets, one fetch ahead
    writing.py          writes the rows of one task
    decoder.py          record batches to Arrow                                             pure
    encoder.py          Arrow to record batches                                             pure
    objects.py          records as Python objects and back, for teams                       pure
    records.py          records to columns and back: compiled, else in Python               pure
    _records.c          the compiled implementation
    _records.pyi        its types
    _plain_records.py   the implementation in Python, also the reference for tests
    payloads.py         payloads of a schema registry as columns
    archive.py          topic to Parquet files; replay of a range into a topic
    iceberg.py          topic to a table of Iceberg, and such a table read again
    statistics.py       records, bytes, keys, lateness and skew per window of time
"""

from dovetail.spark.sessions import register, session

__all__ = ["register", "session"]
