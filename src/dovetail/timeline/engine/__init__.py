"""What timelines decide, without doing it: events and the present in, plans out.

Nothing here waits, reads a clock or talks to anybody, so every rule can be tested with times and
orders of its own. Brokers that know the same decide the same; the store catches what they do not.

    assignment.py       which consumer serves which buckets: two dealers, `ranges` and `racks`
    window.py           from when on an assignment is in force, and for whom
    loader.py           what is leased for whom, and when each message is pushed
    lives.py            how long a message rests between two attempts
    schedule.py         cron and every-n: when a recurring message comes next
    selection.py        which broker a client should be at
    where.py            which messages an operator means: a filter
    signals.py          load now and to come, as clients see it
    drift.py            whose clock is wrong
    health.py           what a broker stops doing when something around it fails
    late_histogram.py   lateness, counted a batch at a time
"""
