"""Every question and every change of an operator, once, as plain typed functions.

The command line, the console, `top` and `doctor` only present what these functions return, so they
cannot disagree. Answers are frozen structs, which the console encodes as they are.

    attention.py   what needs attention, from facts                                  pure
    facts.py       facts for it, as a client of the cluster sees them
    charts.py      the last hour in equal steps, from what a node keeps             pure
    kafka.py       the client: connects, asks, turns errors into ours; metadata: brokers and leaders
    topics.py      list, describe, create, alter and delete topics
    compaction.py  how far compacted topics are compacted
    transactions.py  list transactional ids, end a transaction that hangs
    groups.py      list, describe, reset and delete groups; the one rule for lag
    share_groups.py  what share groups have of their partitions, for groups.py
    users.py       who can log in: list, set a password, delete
    access.py      what users may do: list, add and remove rules
    positions.py   the one grammar for a position; bounds of partitions; positions as offsets
    records.py     read records from where to where, and write some
    feed.py        a topic of one partition that is read on and on
    pipelines.py   the one report of a pipeline, from what drivers write
    streams.py     shared streams: members, leader, lag, elections, from their logs
    timelines.py   list and describe timelines; schedule, move and cancel messages   asynchronous
    outbox.py      the database of an outbox
    cluster.py     members, and storage nodes that are away                          asynchronous
    storage.py     storage nodes: their states; drain, keep, remove                  asynchronous
    node_http.py   ask a node over HTTP, with a typed answer
    dead/          dead letters of timelines, teams and the outbox

Most functions take a `Kafka` (`kafka.py`) first and block; the console runs them on threads. The
client of timelines and the coordination service are asynchronous, and so is what asks them.
`PipelineReports`, `Streams` and `DeadTopics` remember what they read, for repeated questions.

This room knows neither `cli` nor `console`. It stays light to import: the heaviest import at the
head of a module is confluent-kafka, where it is needed.
"""
