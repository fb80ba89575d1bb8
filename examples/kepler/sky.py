"""Kepler's third law as a pipeline: spray, an Arrow function, and a route by what it finds."""

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.teams import FrontEnd, Pipeline, Team, create_topics

TABLE = Path(__file__).parent / "orbits.csv"

#: The law is about bodies that are light beside what they orbit: Jupiter has a thousandth of the
#: Sun's mass, and the law is off by as much.
TOLERANCE = 0.002

AU_KM = 149_597_870.7
YEAR_DAYS = 365.25


def rows_of(table: str) -> list[dict[str, Any]]:
    """The rows of a table in CSV, with numbers as numbers."""
    names, *lines = [line.split(",") for line in table.splitlines() if line]
    return [
        {
            name: cell if name in ("body", "distance_unit") else float(cell)
            for name, cell in zip(names, row, strict=True)
        }
        for row in lines
    ]


def weigh(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Distance cubed over period squared: the mass in the middle, in masses of the Sun."""
    distance, unit = rows.column("distance"), rows.column("distance_unit")
    distance_au = pc.if_else(pc.equal(unit, "km"), pc.divide(distance, AU_KM), distance)
    days = pc.divide(pc.multiply(rows.column("in_days"), 360.0), rows.column("degrees"))
    period_years = pc.divide(days, YEAR_DAYS)
    mass = pc.divide(pc.power(distance_au, 3), pc.power(period_years, 2))
    return pa.RecordBatch.from_arrays([rows.column("body"), mass], names=["body", "mass"])


def orbits_the_sun(result: dict[str, Any]) -> bool:
    return abs(result["mass"] - 1.0) < TOLERANCE


table = Team("table", work=rows_of)
scale = Team("scale", work=weigh, kind="arrow", workers=2)
suns = Team("suns", work=lambda row: f"{row['body']} orbits the Sun")
others = Team("others", work=lambda row: f"{row['body']} orbits {row['mass']:.2e} Suns")

table.spray_to(scale)
scale.route_to(orbits_the_sun, suns, others)

sky = Pipeline("sky", table, scale, suns, others)


if __name__ == "__main__":
    bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    create_topics(sky, bootstrap)
    with FrontEnd(sky, bootstrap) as front:
        front.submit(TABLE.read_text())
        for team in ("suns", "others"):
            for outcome in front.results(team, idle_s=20):
                print(outcome.result)
