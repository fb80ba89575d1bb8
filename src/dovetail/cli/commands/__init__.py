"""One module for each noun (a Typer app) or verb (a function) of the command line.

Run it:

    up.py                  `up`: a single node in this process
    node.py                `node`: a node of a cluster in this process
    cluster.py             `cluster`: a cluster on this machine
    relay.py               `relay`: sends what is in an outbox
    pipeline/              `pipeline`: run a pipeline of teams, its jobs and outcomes, status, graph

Use it:

    produce.py             `produce`: write records
    consume.py             `consume`: read records
    topic.py               `topic`: create, list, describe, alter, delete
    group.py               `group`: list, describe (lag), reset
    transaction.py         `transaction`: list, abort
    timeline.py            `timeline`: create, list, describe, delete
    timeline_messages.py   `timeline`: schedule, peek, dead, consume
    timeline_operating.py  `timeline`: alter, pause, purge, schedules; cancel, move, replay
    timeline_choosing.py   which messages of a timeline such a command is about
    outbox.py              `outbox`: tables, status, dead letters, backfill
    stream.py              `stream`: members, leader, term, lag
    archive.py             `archive`: a topic to Parquet files        a Spark job
    replay.py              `replay`: records to another topic         a Spark job
    stats.py               `stats`: what a topic received             a Spark job

Look after it:

    user.py                `user`: who can log in
    access.py              `access`: what users may do
    certificates.py        `certificates`: a certificate authority, for nodes and clients
    storage.py             `storage`: storage nodes; drain, keep, remove
    config.py              `config`: settings and where each comes from
    bench.py               `bench`: how fast records go in and out
    completion.py          `completion`: the script for a shell
"""
