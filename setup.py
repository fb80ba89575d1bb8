"""The one part that is compiled: Kafka records to Arrow and back, for Spark.

Where there is no compiler the installation goes on without it, and Python does the same more
slowly (`dovetail.pipeline.records`). Everything else about the package is in pyproject.toml.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dovetail.pipeline._records",
            ["src/dovetail/pipeline/_records.c"],
            optional=True,
            extra_compile_args=["-O3"],
        )
    ]
)
