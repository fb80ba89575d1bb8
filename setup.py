"""The one part that is compiled: Kafka records to Arrow and back, for Spark.

Where there is no compiler the installation goes on without it, and Python does the same more
slowly (`dovetail.spark.records`). Everything else about the package is in pyproject.toml.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dovetail.spark._records",
            ["src/dovetail/spark/_records.c"],
            optional=True,
            extra_compile_args=["-O3"],
        )
    ]
)
