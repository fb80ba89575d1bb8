"""What Spark 4.0 and 4.1 lack compared with 4.2 and later, and the substitutes.

4.0         does not know filters, and has no name for a stream's writer of Arrow batches; it passes
            Arrow batches to any writer that is also a batch's writer of them
4.0, 4.1    do not tell a stream its position, nor how much to read, and an available-now trigger is
            one micro-batch (see `source.TopicStreamReader`)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    from pyspark.sql import datasource

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:

        class ReadLimit:
            """How much a micro-batch reads."""

        class ReadAllAvailable(ReadLimit):
            """All that is there."""

        class ReadMaxRows(ReadLimit):
            """So many rows at most."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            """Nobody asks."""

    StreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", None)
    if StreamArrowWriter is None:

        class StreamArrowWriter(
            datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
        ):
            """Both, by which 4.0 gives it Arrow batches."""


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
]
