"""`python -m bench.stream`: the shared stream's figures, each beside its limit.

    python -m bench.stream [--quick] [--only takeover] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1.
"""

import sys

from bench.cases import stream_cost, stream_takeover
from bench.program import Cases, main

CASES: Cases = {
    "filter": stream_cost.measure_filter,
    "pings": stream_cost.measure_pings,
    "takeover": stream_takeover.measure,
}

if __name__ == "__main__":
    sys.exit(main("stream", __doc__, CASES))
