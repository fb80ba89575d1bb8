"""Topics as Spark tables; archive, replay and statistics."""

from dovetail.spark.session import register, spark_session

__all__ = ["register", "spark_session"]
