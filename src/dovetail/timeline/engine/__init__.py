"""The decisions of timelines: events and the present in, plans out; pure.

Nothing here waits, reads a clock or does I/O, so tests can supply any times and any order. Brokers
that know the same decide the same; the store corrects the rest.

    assignment.py       which consumer serves which buckets: two dealers, `ranges` and `racks`
    window.py           when an assignment takes effect, and which consumers it includes
    loader.py           which messages are leased to whom, and when each is pushed
    lives.py            how long a message rests between two attempts
    schedule.py         cron and intervals: the next time of a recurring message
    selection.py        which broker a client should use
    where.py            which messages an operator means: a filter
    signals.py          load now and to come, as clients see it
    drift.py            whose clock is wrong
    health.py           what a broker stops doing when something around it fails
    late_histogram.py   lateness, counted in batches
"""
