"""Where Spark finds `format("dovetail")` by itself.

Spark looks through the installed modules whose names begin with `pyspark_`, and takes the class
`DefaultSource` of each: no session has to register it.
"""

from dovetail.spark.source import DovetailSource as DefaultSource

__all__ = ["DefaultSource"]
