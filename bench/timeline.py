"""`python -m bench.timeline`: the timelines' figures, each beside a peer measured in the same run.

    python -m bench.timeline [--quick] [--only throughput] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1. A peer that is not installed is skipped, loudly.
"""

import sys

from bench.cases import timeline, timeline_beyond, timeline_idle
from bench.program import Cases, main

CASES: Cases = {
    "throughput": timeline.throughput,
    "late": timeline.late,
    "million": timeline.million,
    "ordered": timeline_beyond.ordered,
    "due": timeline_beyond.due,
    "http": timeline_beyond.http,
    "snapshot": timeline_beyond.snapshot,
    "idle": timeline_idle.idle,
    "reconnect": timeline_idle.reconnect,
    "schedules": timeline_idle.schedules,
}

if __name__ == "__main__":
    sys.exit(main("timeline", __doc__, CASES))
