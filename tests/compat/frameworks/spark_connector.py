"""Spark's own Kafka connector: a batch written, a stream from it to another topic, a batch read.

spark_connector.py BOOTSTRAP NAME FOLDER JARS; prints what NAME-out holds in the end.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

bootstrap, name, folder, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
rows = spark.range(50).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
kafka = {"kafka.bootstrap.servers": bootstrap}
rows.write.format("kafka").options(**kafka).option("topic", f"{name}-in").save()

stream = (
    spark.readStream.format("kafka")
    .options(**kafka, subscribe=f"{name}-in", startingOffsets="earliest")
    .load()
    .select("key", "value")
    .writeStream.format("kafka")
    .options(**kafka, topic=f"{name}-out", checkpointLocation=f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
stream.awaitTermination()

found = (
    spark.read.format("kafka")
    .options(**kafka, subscribe=f"{name}-out")
    .load()
    .selectExpr("cast(value as string)")
)
print(*sorted(int(row[0]) for row in found.collect()))
