"""`make bench`: the cluster's figures, each beside its limit or one node measured in the same run.

    python -m bench.cluster [--quick] [--only failover] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1. Everything runs on this machine: one etcd, three
storage nodes, three brokers and the client share its cores.
"""

import sys

from bench.cases import cluster_throughput, failover, idle, recovery
from bench.program import Cases, main

CASES: Cases = {
    "throughput": cluster_throughput.measure,
    "failover": failover.measure,
    "recovery": recovery.measure,
    "idle": idle.measure,
}

if __name__ == "__main__":
    sys.exit(main("cluster", __doc__, CASES))
