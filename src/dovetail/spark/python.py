"""The Python that Spark starts for its workers on this machine.

Spark puts `pyspark.zip` in front of their path, for machines that have no PySpark. Modules in a zip
are compiled anew by every process: importing what reads a stream takes 1.0 s of a processor from
the zip and 0.3 s from site-packages, which has the same code. A pipeline starts a dozen such
processes, and Spark waits ten seconds for each: on a small machine that is busy, none is in time.
So, where the driver is all there is, workers are started by a wrapper that leaves the zips out.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dovetail.spark.java import cache_folder, write_program


def python_program(environment: Mapping[str, str], *, cache: Path | None = None) -> Path:
    """What `PYSPARK_PYTHON` is to be; `cache` is a folder for the wrapper."""
    import pyspark

    if "site-packages" not in Path(pyspark.__file__).parts:
        # A Spark of its own, which is on no path but the one that it makes.
        return Path(sys.executable)
    folder = cache or cache_folder(environment) / "python"
    # One for each installation: the folder of its interpreter names it.
    name = sys.executable.strip(os.sep).replace(os.sep, "-")
    text = (
        "#!/bin/sh\n"
        "IFS=:\n"
        "kept=\n"
        "for part in $PYTHONPATH; do\n"
        '  case "$part" in\n'
        "    */pyspark.zip | */py4j-*-src.zip) ;;\n"
        '    *) kept="$kept${kept:+:}$part" ;;\n'
        "  esac\n"
        "done\n"
        f'PYTHONPATH=$kept exec "{sys.executable}" "$@"\n'
    )
    return write_program(folder / name, text)
