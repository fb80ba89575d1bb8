"""Timelines: messages due at a time, leased to one consumer.

A producer schedules a message; at its due time a carrier pushes it to one consumer, which has a
lease on it for as long as it says. Done: the consumer deletes it. Failed: it releases it, and the
message comes again later. Dead: the lease ends, and the message comes to somebody else.

All ownership is a lease with a version, and the store decides: who shows an old version is refused.
Everything else in this room (which consumer, when, from which carrier) is about speed and evenness,
and may be wrong for a moment without harm.

    message.py          what travels: messages, handles, leases, outcomes
    store.py            what a store promises: states, leases, versions
    sqlite_store.py     one file for each timeline (`_sqlite_thread`, `_sqlite_statements`)
    postgres_store.py   tables in PostgreSQL, shared by all carriers (extra `postgres`)
    memory_store.py     the model, and the fake for users' tests
    schedule.py         cron and every-n: pure
"""
