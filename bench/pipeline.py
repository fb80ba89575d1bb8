"""`make bench`: Spark's figures: topics as tables, and teams, each beside its limit or peer.

    python -m bench.pipeline [--quick] [--only teams] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1.
"""

import sys

from bench.cases import (
    spark_latency,
    spark_records,
    spark_tables,
    spark_teams,
    team_bulk,
    team_demo,
    team_driver,
    team_orders,
    team_takeover,
)
from bench.program import Cases, main

CASES: Cases = {
    "records": spark_records.measure,
    "tables": spark_tables.measure,
    "teams": spark_teams.measure,
    "latency": spark_latency.measure,
    "orders": team_orders.measure,
    "takeover": team_takeover.measure,
    "driver": team_driver.measure,
    "bulk": team_bulk.measure,
    "demo": team_demo.measure,
}

if __name__ == "__main__":
    sys.exit(main("pipeline", __doc__, CASES))
