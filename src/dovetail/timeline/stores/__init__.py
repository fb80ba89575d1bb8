"""Stores: they keep the messages of timelines.

`protocol.py` has a store's promises; one conformance suite tests all three stores. The row that
moves is small, and the body lies apart, because every lease writes the row again.

    protocol.py               the promises of a store: states, leases, versions
    outcomes.py               what the SQL stores share
    sqlite.py                 one file for each timeline, on one node
    _sqlite_statements.py     its tables and statements
    _sqlite_work.py           what its commands do inside a transaction
    _sqlite_thread.py         its thread: commands of a moment share one commit
    postgres.py               ten tables for each timeline, which all brokers share
    _postgres_statements.py   their statements
    _postgres_order.py        order keys, keys that stay taken, the pace of all consumers
    _postgres_leasing.py      its leases
    _postgres_floors.py       where the live rows of a queue begin, while a snapshot is open
    _postgres_news.py         notifications between brokers: LISTEN and NOTIFY
    _postgres_pool.py         connections to PostgreSQL, and the meaning of their errors
    postgres_database.py      all timelines of a database
    _memory_row.py            a message in memory
    memory.py                 the model against which the others are tested, and the users' fake
"""
