"""Every question and change of an operator, implemented once as plain typed functions.

The command line, the console, `top` and `doctor` only present what these functions return, so they
cannot disagree. Answers are frozen structs, which the console encodes unchanged.

    attention.py   what needs attention, from facts                                  pure
    facts.py       gathers these facts, as a client of the cluster
    charts.py      the last hour in equal steps, from what a node keeps             pure
    kafka.py       the Kafka client: connects, calls, maps errors to ours; brokers and leaders
    topics.py      list, describe, create, alter and delete topics
    compaction.py  how far compacted topics are compacted
    transactions.py  list transactional ids, end a hanging transaction
    groups.py      list, describe, reset and delete groups; the one rule for lag
    share_groups.py  positions and lag of share groups, for groups.py
    users.py       users that can log in: list, set a password, delete
    access.py      what users may do: list, add and remove rules
    positions.py   the one grammar for a position; bounds of partitions; positions as offsets
    records.py     read a range of records, and write some
    feed.py        follows a topic with one partition
    pipelines.py   the one report of a pipeline, from what drivers write
    streams.py     shared streams: members, leader, lag, elections, from their logs
    timelines.py   list and describe timelines; schedule, move and cancel messages   asynchronous
    outbox.py      the database of an outbox
    cluster.py     members, and storage nodes that are away                          asynchronous
    storage.py     storage nodes: their states; drain, keep, remove                  asynchronous
    node_http.py   asks a node over HTTP, with a typed answer
    dead/          dead letters of timelines, teams, shared streams and the outbox

Most functions take a `Kafka` (`kafka.py`) first and block; the console runs them on threads. The
client of timelines and the coordination service are asynchronous, and so are the functions that
call them. `PipelineReports`, `Streams` and `DeadTopics` cache what they read, for repeated
questions.

This room knows neither `cli` nor `console`. It stays light to import: the heaviest import at the
head of a module is confluent-kafka, where it is needed.
"""
