"""`make bench`: many clients, idle and at work, beside few of them in the same run.

    python -m bench.clients [--quick] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1.
"""

import sys

from bench.cases import clients
from bench.program import Cases, main

CASES: Cases = {"clients": clients.measure}

if __name__ == "__main__":
    sys.exit(main("clients", __doc__, CASES))
