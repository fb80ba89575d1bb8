"""Topics as Spark tables, and teams: the data pipeline on Spark.

    java  session                         a Java for Spark; a session with good defaults
    _records.c  _plain_records  records   records to Arrow columns and back            pure
    compression  decoder  encoder         batches to Arrow and back                    pure
    options  offsets                      what a user may ask for; which offsets       pure
    client                                Kafka requests over plain sockets, for a Python worker
    source  sink  identity                `format("dovetail")`, reading and writing
    jobs                                  archive, replay, statistics
    team  connectors  graph  work_types   teams, how they are connected, and what is refused   pure
    codecs  envelope  outcome             works and what became of them, on the wire     pure
    work_plan  seen  progress  picture    which is tried again; came before; how far     pure
    worker  worker_child  work_task       the user's function in a process; a task of Spark
    work_delays                           works that are not due yet, through a timeline
    frontend  engine  master              submit and ask; run the teams; one among several

Everything here speaks the Kafka protocol in versions that Kafka 3 and 4 have, and is meant for a
real Kafka too. Nothing here is imported by a node: Spark, Arrow and Java are needed only by who
uses them (`pip install 'dovetail[spark]'`).
"""

from dovetail.teams.frontend import FrontEnd, WorkFailed, create_topics
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import Failure, FailureKind, Outcome, Reject
from dovetail.teams.team import Team

__all__ = [
    "Failure",
    "FailureKind",
    "FrontEnd",
    "Outcome",
    "Pipeline",
    "Reject",
    "Team",
    "WorkFailed",
    "create_topics",
]
