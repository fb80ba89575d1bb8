"""Timelines: messages due at a time, leased to one consumer.

A producer schedules a message; at its due time a broker pushes it to one consumer, which has a
lease on it for as long as it says. Done: the consumer deletes it. Failed: it releases it, and the
message comes again later. Dead: the lease ends, and the message comes to somebody else.

All ownership is a lease with a version, and the store decides: who shows an old version is refused.
Everything else in this room (which consumer, when, from which broker) is about speed and evenness,
and may be wrong for a moment without harm.

    message.py          what travels: messages, handles, leases, outcomes
    config.py           settings of one timeline
    store.py            what a store promises: states, leases, versions
    sqlite_store.py     one file for each timeline (`_sqlite_thread`, `_sqlite_statements`)
    postgres_store.py   tables that all brokers share (`_postgres_pool`, `_postgres_statements`);
                        `postgres_stores`: all timelines of a database
    memory_store.py     the model, and the fake for users' tests
    outcomes.py         what the SQL stores share
    schedule.py         cron and every-n: pure
    deal.py, window.py  which consumer serves which buckets, and from when on: pure
    loader.py           what is leased to whom, and when each is pushed: pure
    drift.py, health.py clocks and degradations: pure
    selection.py        which broker a client should be at: pure
    signals.py          load, as clients are told it: pure
    catalog.py          which timelines there are, in the coordination service
    standing.py         a broker's lease in its cluster, taken anew when it was lost
    roster.py           which brokers there are, and who is at each of them
    neighbours.py       how far away the others are, and how far their clocks
    frames.py           the requests (`frame_codec`: their bytes)
    session.py          producers and consumers of a timeline, as a broker knows them
    carrying.py         the doing part around the loader: timers, store, waiting requests
    requests.py         what each request does
    service.py          all timelines of a broker, and their upkeep
    metrics.py          what is counted (`late_histogram`: lateness, a batch at a time)
"""
