"""Services beside the node: etcd, PostgreSQL, the database of the outbox."""

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.cli.doctor.finding import Finding, failed, ok, skipped, warning
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    import ssl

    from dovetail.coordination.etcd import EtcdSettings

#: Versions of etcd that could lose data consistency at a crash; a user's cluster is newer.
ETCD_FAULTY = ((3, 5, 0), (3, 5, 2))
ETCD_MIN = (3, 4, 0)

#: PostgreSQL has `xid8` and `pg_current_xact_id` from here on.
POSTGRES_MIN = 13


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One endpoint: its version, or why it did not answer."""

    address: str
    version: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class PostgresFact:
    """The store of timelines: its version, or why there is none."""

    version: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class OutboxFact:
    """The outbox: version of its tables and its state; or why the database did not answer."""

    version: int = 0
    wanted: int = 0
    pending: int = 0
    oldest_ms: int = 0
    dead: int = 0
    failing: tuple[str, ...] = ()
    error: str = ""


def gather_etcd(etcd: "EtcdSettings", *, limit_s: float) -> tuple[EtcdMember, ...]:
    """Asks every endpoint for its version."""
    tls = etcd.tls()
    return tuple(_ask_etcd(address, tls, limit_s) for address in etcd.addresses)


def _ask_etcd(address: str, tls: "ssl.SSLContext | None", limit_s: float) -> EtcdMember:
    url = f"{'https' if tls else 'http'}://{address}/version"
    try:
        # The scheme is ours, or the user's own setting for their own etcd.
        with urllib.request.urlopen(url, timeout=limit_s, context=tls) as answer:  # noqa: S310
            return EtcdMember(address, str(json.load(answer)["etcdserver"]))
    except urllib.error.HTTPError as error:
        with error:  # It holds the connection.
            return EtcdMember(address, error=f"it answers {error.code} {error.reason}")
    except http.client.HTTPException as error:
        return EtcdMember(address, error=f"it does not speak http: {error}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", None) or error
        said = getattr(reason, "strerror", None) or str(reason)
        return EtcdMember(address, error=said.lower())


def judge_etcd(members: tuple[EtcdMember, ...]) -> Finding:
    """A majority must answer, in a version that can be trusted."""
    away = [member for member in members if member.error]
    here = [member for member in members if not member.error]
    named = "; ".join(f"{member.address}: {member.error}" for member in away)

    if len(here) <= len(members) // 2:
        return failed(
            "etcd",
            f"{len(here)} of {len(members)} members answer ({named})",
            fix="start etcd, or correct coordination.endpoints (--etcd)",
        )

    versions = sorted({member.version for member in here}, key=_numbers)
    if _numbers(versions[0]) < ETCD_MIN:
        return failed(
            "etcd", f"version {versions[0]} is too old", fix="upgrade etcd to a current 3.5 or 3.6"
        )

    low, high = ETCD_FAULTY
    if any(low <= _numbers(version) <= high for version in versions):
        return warning(
            "etcd",
            f"version {', '.join(versions)}: 3.5.0 to 3.5.2 can become inconsistent at a crash",
            fix="for anything but trials, upgrade etcd to a current 3.5 or 3.6",
        )

    if away:
        return warning(
            "etcd",
            f"{len(here)} of {len(members)} members answer ({named})",
            fix="bring the others back before another one fails",
        )
    return ok("etcd", f"{len(here)} of {len(members)} members, version {', '.join(versions)}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())


def gather_postgres(dsn: str, *, limit_s: float) -> PostgresFact:
    """Connects and asks for the version."""
    try:
        import asyncpg
    except ImportError:
        return PostgresFact(error="the driver is not installed")

    async def ask() -> int:
        connection = await asyncpg.connect(dsn, timeout=limit_s)
        try:
            return int(await connection.fetchval("SHOW server_version_num")) // 10_000
        finally:
            await connection.close()

    try:
        return PostgresFact(asyncio.run(ask()))
    except (OSError, ValueError, TimeoutError, asyncpg.PostgresError) as error:
        return PostgresFact(error=str(error) or "no answer in time")


def judge_postgres(fact: PostgresFact | None) -> Finding:
    """None: timelines are kept in files."""
    if fact is None:
        return skipped("postgres", "timelines are kept in files of the node (timeline.store)")
    if fact.error:
        return failed(
            "postgres",
            f"the store of timelines does not answer: {fact.error}",
            fix="start PostgreSQL, or correct timeline.dsn; the driver is in dovetailmq[postgres]",
        )
    if fact.version < POSTGRES_MIN:
        return failed(
            "postgres",
            f"version {fact.version}; {POSTGRES_MIN} or later is needed",
            fix="upgrade PostgreSQL",
        )
    return ok("postgres", f"version {fact.version} answers")


def gather_outbox(url: str) -> OutboxFact:
    """Reads the version of the tables and the status."""
    try:
        from sqlalchemy.exc import DBAPIError

        from dovetail.outbox.database import open_engine
        from dovetail.outbox.schema import SCHEMA_VERSION, version_of
        from dovetail.outbox.status import read_status
    except ImportError as error:
        return OutboxFact(error=f"{error.name} is not installed")

    try:
        engine = open_engine(url)
        with engine.connect() as connection:
            version = version_of(connection)
        if version < SCHEMA_VERSION:
            return OutboxFact(version, SCHEMA_VERSION)
        status = read_status(engine)
    except DBAPIError as error:
        return OutboxFact(error=str(error.orig).strip())
    except DovetailError as error:
        return OutboxFact(error=str(error))

    return OutboxFact(
        version,
        SCHEMA_VERSION,
        sum(topic.pending for topic in status.topics),
        max((topic.oldest_ms for topic in status.topics), default=0),
        sum(topic.dead for topic in status.topics),
        tuple(
            f"{topic.topic}: {shard.error.splitlines()[0]}"
            for topic in status.topics
            for shard in topic.shards
            if shard.error
        ),
    )


def judge_outbox(fact: OutboxFact | None, *, idle_ms: int) -> Finding:
    """None: no database is named. A relay that runs empties the outbox within its idle time."""
    if fact is None:
        return skipped("outbox", "no outbox.database is set")

    if fact.error:
        return failed(
            "outbox",
            f"the database cannot be read: {fact.error}",
            fix="start it, or correct outbox.database; drivers are in dovetailmq[outbox,postgres] "
            "and dovetailmq[outbox,mysql]",
        )
    if fact.version < fact.wanted:
        what = "no tables" if fact.version == 0 else f"tables of version {fact.version}"
        return failed(
            "outbox",
            f"{what}; version {fact.wanted} is needed",
            fix="dovetail outbox migrate, or your Alembic or Django migrations",
        )

    if fact.failing:
        return failed(
            "outbox", f"sending fails: {'; '.join(fact.failing[:3])}", fix="dovetail outbox status"
        )

    late_ms = 10 * idle_ms + 5_000
    if fact.pending and fact.oldest_ms > late_ms:
        return warning(
            "outbox",
            f"{fact.pending:,} messages wait, the oldest for {fact.oldest_ms / 1000:,.0f} s",
            fix="check that a relay runs: dovetail relay; dovetail outbox status",
        )
    if fact.dead:
        return warning(
            "outbox",
            f"{fact.dead:,} dead letters",
            fix="dovetail outbox dead list, then replay or drop them",
        )
    return ok("outbox", f"tables of version {fact.version}, {fact.pending:,} messages wait")
