"""The parts that are compiled: Kafka records to Arrow and back, whether records are whole, keys.

Where there is no compiler the installation goes on without them, and Python does the same more
slowly (`dovetail.spark.records`, `dovetail.record_batch`). Everything else about the package is in
pyproject.toml.
"""

from setuptools import Extension, setup


def compiled(name: str) -> Extension:
    """A module of one C file."""
    return Extension(
        name, [f"src/{name.replace('.', '/')}.c"], optional=True, extra_compile_args=["-O3"]
    )


setup(
    ext_modules=[
        compiled("dovetail.spark._records"),
        compiled("dovetail._record_check"),
        compiled("dovetail.log.compaction._key_map"),
    ]
)
