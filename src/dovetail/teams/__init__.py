"""Teams: functions that work through topics on Spark, each job with exactly one outcome.

A *team* has a name and a function. It takes *jobs* from its input topic, runs the function on each
job's *payload* in worker processes, and puts the result on its results topic. *Connectors* make
results the jobs of other teams; teams and connectors together are a *pipeline*. A job that fails
too often becomes a dead letter with the reason.

    parse, ship = Team("parse", parse_order), Team("ship", ship_order)
    parse >> ship
    orders = Pipeline("orders", parse, ship)

    with FrontEnd(orders, "broker:9092") as front:
        front.ask({"sku": "A-7"}, job_id="order-7")

The *engine* runs one Spark job for a pipeline, on the driver that is elected *master*. Its tasks
serve partitions: each job runs in a child process, and its outcome is written when it ends. The
outcome is stored first, and everything else follows from the stored outcome; so a crash, a retry or
a second master can neither lose nor double one (`chains`). Repeated job ids are dropped
(`tasks/seen.py`). Submitting needs neither Java nor PySpark.

    team.py          a team: name, function, policy                                         pure
    connectors.py    where results go next: pipe, spray, route, gather                      pure
    graph.py         a pipeline, checked when it is built                                   pure
    context.py       what a function can learn about its job                                pure
    types.py         whether the results of one function fit the next                       pure
    picture.py       a pipeline as text and as SVG                                          pure
    codecs.py        payloads to bytes and back: JSON, MessagePack, Arrow, raw              pure
    envelope.py      a job as a record: key, value, headers                                 pure
    outcome.py       how a job ends: result, dead letter, or a later try                    pure
    topics.py        creates the topics of a pipeline
    front/           submits jobs, reads outcomes
    cancelling.py    cancels a job that waits, is delayed, or runs
    engine.py        hands out partitions to the tasks of a Spark job, and watches them
    spark_job.py     the tasks of an engine, as Spark runs them
    master.py        one driver among several leads; the others stand by, warm
    tasks/           what a Spark task does: jobs in, outcomes out
    chains/          exactly one outcome, however many attempts serve a partition
    workers/         functions in child processes
    travel/          ships functions to other machines
    delays.py        delayed jobs: through a timeline to their team
    progress.py      the position, lag and rate of each team                                pure
    report.py        the record in which a driver reports its pipeline                      pure
    reporter.py      writes that record, and sets the metrics
    metrics.py       the driver's metrics
"""

from dovetail.teams.cancelling import cancel
from dovetail.teams.context import JobContext
from dovetail.teams.front.frontend import FrontEnd
from dovetail.teams.front.submitted import Submitted
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import Failure, FailureKind, JobFailed, Outcome, Reject
from dovetail.teams.tasks.gathers import GatheredItem
from dovetail.teams.team import Team
from dovetail.teams.topics import create_topics

__all__ = [
    "Failure",
    "FailureKind",
    "FrontEnd",
    "GatheredItem",
    "JobContext",
    "JobFailed",
    "Outcome",
    "Pipeline",
    "Reject",
    "Submitted",
    "Team",
    "cancel",
    "create_topics",
]
