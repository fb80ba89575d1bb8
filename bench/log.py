"""`make bench`: the log's figures, each beside its peer or limit measured in the same run.

    python -m bench.log [--quick] [--only throughput] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1. A peer that is not installed is skipped, loudly.
"""

import sys

from bench.cases import bandwidth, compaction, latency, share, startup, throughput, transactions
from bench.program import Cases, main

CASES: Cases = {
    "throughput": throughput.measure,
    "bandwidth": bandwidth.measure,
    "latency": latency.measure,
    "startup": startup.measure,
    "compaction": compaction.measure,
    "share": share.measure,
    "transactions": transactions.measure,
}

if __name__ == "__main__":
    sys.exit(main("log", __doc__, CASES))
