"""One module for each noun (a Typer app) or verb (a function) of the command line.

Run it:

    up.py                  `up`: a single node in this process
    node.py                `node`: a node of a cluster in this process
    cluster.py             `cluster`: a cluster on this machine
    relay.py               `relay`: sends what is in an outbox
    pipeline.py            `pipeline`: run, status and graph of a pipeline of teams
    pipeline_run.py        how a pipeline runs, alone or as one of several masters, and its display

Use it:

    produce.py             `produce`: write records
    consume.py             `consume`: read records
    topic.py               `topic`: create, list, describe, alter, delete
    group.py               `group`: list, describe (lag), reset
    transaction.py         `transaction`: list, abort
    timeline.py            `timeline`: create, list, describe, delete
    timeline_messages.py   `timeline`: schedule, peek, dead, replay, consume
    timeline_operating.py  `timeline`: alter, pause, resume, purge, schedules, discard
    outbox.py              `outbox`: tables, status, dead letters, backfill
    stream.py              `stream`: members, leader, term, lag
    archive.py             `archive`: a topic to Parquet files        a Spark job
    replay.py              `replay`: records to another topic         a Spark job
    stats.py               `stats`: what a topic received             a Spark job

Look after it:

    user.py                `user`: who can log in
    access.py              `access`: what users may do
    storage.py             `storage`: storage nodes; drain, keep, remove
    config.py              `config`: settings and where each comes from
    bench.py               `bench`: how fast records go in and out
    completion.py          `completion`: the script for a shell
"""
