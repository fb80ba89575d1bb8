"""`make bench`: what should hold at size: cores, a crowded machine, many tiny entries.

    python -m bench.size [--quick] [--only brokers] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1.
"""

import sys

from bench.cases import crowded, machine_brokers, tiny_entries
from bench.program import Cases, main

CASES: Cases = {
    "brokers": machine_brokers.measure,
    "crowded": crowded.measure,
    "tiny-entries": tiny_entries.measure,
}

if __name__ == "__main__":
    sys.exit(main("size", __doc__, CASES))
