"""Teams: functions that work through topics on Spark, each job with exactly one outcome.

A *team* has a name and a function. It takes *jobs* from its input topic, runs the function on each
job's *payload* in worker processes, and puts the result on its results topic. *Connectors* make
results the jobs of other teams; teams and connectors together are a *pipeline*. A job that fails
too often becomes a dead letter that says why.

    parse, ship = Team("parse", parse_order), Team("ship", ship_order)
    parse >> ship
    orders = Pipeline("orders", parse, ship)

    with FrontEnd(orders, "broker:9092") as front:
        front.ask({"sku": "A-7"}, job_id="order-7")

The *engine* runs one streaming query for each team, on the driver that is elected *master*. The
outcome of a job is stored first, and everything else follows from the stored outcome; so a crash,
a retry or a second master can neither lose nor double one (`task.py`). Repeated job ids are
dropped (`seen.py`). Submitting needs neither Java nor PySpark.

    team.py          a team: name, function, policy                                         pure
    connectors.py    where results go next: pipe, spray, route                              pure
    graph.py         a pipeline, checked when it is built                                   pure
    types.py         do the results of one function fit the next?                           pure
    picture.py       a pipeline as text and as SVG                                          pure
    codecs.py        payloads to bytes and back: JSON, MessagePack, Arrow, raw              pure
    envelope.py      a job as a record: key, value, headers                                 pure
    outcome.py       how a job ends: result, dead letter, or a later try                    pure
    topics.py        creates the topics of a pipeline
    frontend.py      submit jobs, read outcomes
    engine.py        one streaming query for each team
    master.py        one driver among several leads; the others stand by, warm
    team_table.py    how a team's query meets Spark
    task.py          what one Spark task does for a team: jobs in, outcomes out
    seen.py          which job ids came before                                              pure
    plan.py          which jobs a worker gets next, and when each has ended                 pure
    worker.py        a child process that runs the function, and is replaced when it is lost
    worker_child.py  inside that process
    delays.py        jobs that are not due yet, through a timeline
    progress.py      how far each team is                                                   pure
    report.py        the record in which a driver reports its pipeline                      pure
    reporter.py      writes that record, and sets the metrics
    metrics.py       the driver's metrics
"""

from dovetail.teams.frontend import FrontEnd, JobFailed
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import Failure, FailureKind, Outcome, Reject
from dovetail.teams.team import Team
from dovetail.teams.topics import create_topics

__all__ = [
    "Failure",
    "FailureKind",
    "FrontEnd",
    "JobFailed",
    "Outcome",
    "Pipeline",
    "Reject",
    "Team",
    "create_topics",
]
