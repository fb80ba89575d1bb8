"""`make bench`: Spark's figures: topics as tables, each beside its limit measured in the same run.

    python -m bench.pipeline [--quick] [--only tables] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1.
"""

import sys

from bench.cases import spark_records, spark_tables
from bench.program import Cases, main

CASES: Cases = {
    "records": spark_records.measure,
    "tables": spark_tables.measure,
}

if __name__ == "__main__":
    sys.exit(main("pipeline", __doc__, CASES))
