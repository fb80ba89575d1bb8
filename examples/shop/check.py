"""Does everything hold? Reads a shop's database and topics, prints the proof, exits with 0 or 1.

    python -m examples.shop.check --database shop.db --bootstrap 127.0.0.1:9092

The shop must be closed and idle: an order in progress counts as lost.
"""

import argparse
import sys
from pathlib import Path

from examples.shop.evidence import read_evidence
from examples.shop.verdict import figures, verdict
from examples.shop.view import print_proof, proof_console


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--remind-after", type=float, default=10.0, help="seconds to pay in")
    given = parser.parse_args()
    evidence = read_evidence(given.database, given.bootstrap)
    checks = verdict(evidence, remind_after_s=given.remind_after)
    print_proof(proof_console(), checks, figures(evidence))
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
