"""`python -m bench.outbox`: the outbox's figures, each beside its limit measured in the same run.

    python -m bench.outbox [--quick] [--only drain] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1. PostgreSQL and the node sync every commit.
"""

import sys

from bench.cases import outbox_drain, outbox_inbox, outbox_publish
from bench.program import Cases, main

CASES: Cases = {
    "publish": outbox_publish.measure_publish,
    "latency": outbox_publish.measure_latency,
    "inbox": outbox_inbox.measure,
    "drain": outbox_drain.measure,
}

if __name__ == "__main__":
    sys.exit(main("outbox", __doc__, CASES))
