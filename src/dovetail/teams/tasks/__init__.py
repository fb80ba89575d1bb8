"""What a Spark task does for a pipeline: partitions of teams, jobs in, outcomes out.

lease.py         serves some partitions until it is ended
dealing.py       which task serves which partitions                                     pure
attempt.py       an attempt at a partition: its chain, lanes and snapshots
serving.py       one partition of a team
gathering.py     one partition of a gathering
gathers.py       when the items of a job are complete                                   pure
cancel_log.py    follows the cancels of a pipeline
commits.py       commits snapshots without waiting
tail.py          follows a partition
outcome_rows.py  outcomes as rows, and what follows from them                           pure
seen.py          which job ids came before                                              pure
seen_log.py      the same, read from the log where memory lacks it
"""
