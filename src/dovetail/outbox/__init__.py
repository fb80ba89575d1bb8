"""The outbox: publish inside your own database transaction; a relay sends.

An application writes its messages into `kafka_messages` in the transaction that changes its data.
Rolled back, they never existed; committed, they will be sent, once, in order, whichever process
dies meanwhile. The application needs a database and a Kafka; Dovetail is one, any other will do.

    producer ──insert──> kafka_messages ──relay: lock, read, write down, send, delete──> topic

**Order.** Per partition key, messages leave in the order in which their transactions committed:

    if T1's COMMIT returned before T2's was requested, or T2 waited for a lock that T1 held,
    T1's messages leave before T2's.

Ids cannot provide that: they are drawn when a row is inserted, and a transaction that inserts first
may commit last. Nor can transaction ids. Instead:

- *PostgreSQL*: a deferred trigger draws a number while the transaction commits (`kafka_commits`).
  When T1's commit returned before T2's began, T1's number is lower; when T2 waited for T1's lock,
  it was not committing yet. So sorting by that number respects every order that anybody can have
  observed; two commits in progress at the same moment are sorted the same way for everybody. A
  pass of the relay is one snapshot: whatever it does not see committed after all that it sees, and
  the next pass sends it behind. The relay waits for no transaction, however long it is open, and no
  publisher waits. (SET CONSTRAINTS IMMEDIATE draws the number early; a prepared transaction draws
  it when it is prepared.)
- *MariaDB, MySQL*: a commit has no hook. Publishing locks a row for each key (`kafka_order`) until
  the transaction ends, so the next publisher of the key draws its ids after the commit before it:
  ids of a key are in the order of commits. Publishers of one key wait for each other.
  `outbox.serialise = false` gives that up; then only this holds: if T1 committed before T2
  published, T1's leave first. A pass is one snapshot here too.
- *SQLite*: one writer at a time holds the database from its first write to its commit, so ids are
  in the order of commits.

**Once.** A batch is written down, with the sequence numbers of an idempotent producer, before it is
sent. A relay that finds it written sends it again under the same numbers (`drain.py`): Dovetail and
any Kafka store it once, although relays die, pause and wake. Every message carries its id as a
header, for the one case that remains: a broker that has forgotten the producer. A message for a
timeline (`Producer.schedule`) takes the same way, with `timeline:NAME` for a topic.

**Ownership.** A relay owns a (topic, shard) by a lock with a term; every write of the owner names
the term, and the database refuses an old one (`store.py`).

In the application:

    producer.py     `Producer`: publishes messages
    message.py      a message, checked where it enters
    backends.py     where a published message goes: Kafka, the outbox, or a list for tests
    publishing.py   writes messages into the caller's own transaction
    targets.py      sessions and connections of every kind, on which that transaction runs
    inbox/          applies a message's effect once, in a consumer's database
    poller.py       reads tables that are written without the outbox: backfill and polling
    django/         an app with a migration, and a producer on Django's connections
    alembic.py      the tables in an Alembic migration

In the relay:

    drain.py        the protocol for draining one (topic, shard); pure
    batch.py        which messages go together, under which sequence numbers; pure
    pace.py         how long to wait and how much to take; pure
    claim.py        a lock that is held, and the batches written down under it
    store.py        the tables: locks with a term, recording of results
    reading.py      the messages of a claim, in order, from one snapshot
    sender.py       sends batches under the numbers that were written down
    timeline_sender.py  puts messages into their timelines, under the same numbers
    worker.py       finds topics with messages, locks one, drains it
    relay.py        workers in threads, their wake-up, and a clean stop

For both, and for operators:

    schema.py       the tables, for PostgreSQL, MariaDB/MySQL and SQLite
    dialects.py     what differs between the databases
    database.py     addresses, drivers, and one error for a database that is down
    shards.py       how many workers can drain a topic at once
    dead.py         dead letters: inspect, replay, drop
    status.py       what waits, which relay has the locks, what went wrong
    metrics.py      the metrics of a relay
    spans.py        traces of published and sent messages
"""

from typing import TYPE_CHECKING

from dovetail.outbox.backends import Backend, DatabaseBackend, KafkaBackend, TestBackend
from dovetail.outbox.inbox import Inbox
from dovetail.outbox.message import MESSAGE_ID_HEADER, Message
from dovetail.outbox.producer import Producer

if TYPE_CHECKING:
    from dovetail.outbox.relay import Relay, start_relay
    from dovetail.outbox.schema import create_tables, migrate

__all__ = [
    "MESSAGE_ID_HEADER",
    "Backend",
    "DatabaseBackend",
    "Inbox",
    "KafkaBackend",
    "Message",
    "Producer",
    "Relay",
    "TestBackend",
    "create_tables",
    "migrate",
    "start_relay",
]

#: What needs SQLAlchemy is loaded when it is asked for: publishing on a plain connection does not.
_LAZY = {
    "Relay": "dovetail.outbox.relay",
    "start_relay": "dovetail.outbox.relay",
    "create_tables": "dovetail.outbox.schema",
    "migrate": "dovetail.outbox.schema",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from dovetail.errors import InvalidSetting

    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"{name} needs {error.name}, which is not installed; pip install 'dovetailmq[outbox]'"
        ) from error
