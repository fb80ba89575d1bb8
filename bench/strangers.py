"""What strangers cost a client that has logged in (R7).

    python -m bench.strangers [--quick] [--only silent] [--json PATH] [--folder FOLDER]

A producer writes 200 messages a second over TLS and login, and waits for each acknowledgement:
first alone, then beside ten thousand connections that never log in, on the same node. Each case
is one kind of stranger. Who is turned away comes again.
"""

import sys
from functools import partial

from bench.cases import strangers
from bench.program import Cases, main

CASES: Cases = {kind: partial(strangers.measure, kind) for kind in strangers.KINDS}

if __name__ == "__main__":
    sys.exit(main("strangers", __doc__, CASES))
