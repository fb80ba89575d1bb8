"""Topics as Spark tables, and teams: the data pipeline on Spark.

    java  session                         a Java for Spark; a session with good defaults
    _records.c  _plain_records  records   records to Arrow columns and back            pure
    compression  decoder  encoder         batches to Arrow and back                    pure
    options  offsets                      what a user may ask for; which offsets       pure
    client                                Kafka requests over plain sockets, for a Python worker
    source  sink  identity                `format("dovetail")`, reading and writing
    jobs                                  archive, replay, statistics

Everything here speaks the Kafka protocol in versions that Kafka 3 and 4 have, and works on a real
Kafka too. Nothing here is imported by a node: Spark, Arrow and Java are needed only by who uses
them (`pip install 'dovetail[spark]'`).
"""

from dovetail.pipeline.session import register, spark_session

__all__ = ["register", "spark_session"]
