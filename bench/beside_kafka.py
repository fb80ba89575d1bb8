"""`make bench`: Dovetail beside a real Apache Kafka, in turns on the same machine.

    python -m bench.beside_kafka [--quick] [--only one] [--json PATH] [--folder FOLDER]

Kafka's jars come from Maven Central once and are kept. Without Maven or Java the lines are skipped.
Exit code 0 if no line misses its rule: at equal durability we are not behind.
"""

import sys

from bench.cases import kafka_failover, kafka_one, kafka_tools
from bench.program import Cases, main

CASES: Cases = {
    "one": kafka_one.measure,
    "perf-test": kafka_tools.measure,
    "failover": kafka_failover.measure,
}

if __name__ == "__main__":
    sys.exit(main("beside_kafka", __doc__, CASES))
