"""The timelines of a node: makes their stores and service from the settings.

On a node that is alone each timeline is a file below the data folder. In a cluster, and where one
machine has several brokers, every broker serves every timeline, so all brokers must reach the
store: PostgreSQL. Without it they serve no timelines and say so.
"""

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from dovetail import __version__
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.coordination.etcd import EtcdSettings
from dovetail.coordination.membership import LeaseSource
from dovetail.errors import InvalidSetting
from dovetail.logging import get_logger
from dovetail.node.broker import cluster_id
from dovetail.settings import Settings
from dovetail.timeline.engine.selection import Crowd
from dovetail.timeline.forwarding import Topics
from dovetail.timeline.service import TimelineService
from dovetail.timeline.stores.postgres_database import PostgresStores
from dovetail.timeline.stores.protocol import Stores
from dovetail.timeline.stores.sqlite import SqliteStores
from dovetail.wire.probe import Prober

_log = get_logger("timeline")

_TAG = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Labels that our own series have.
_TAGS_TAKEN = frozenset(
    {
        "direction",
        "filter",
        "le",
        "op",
        "partner",
        "request",
        "role",
        "state",
        "target",
        "timeline",
        "type",
        "window",
    }
)


@asynccontextmanager
async def running_timelines(
    settings: Settings,
    coordinator: Coordinator,
    *,
    data_dir: Path,
    clock: Clock,
    registry: CollectorRegistry,
    address: str,
    leases: LeaseSource | None,
    prober: Prober,
    topics: Topics,
) -> AsyncIterator[TimelineService | None]:
    """Serves timelines inside; None where they are switched off or have no store.

    `address` is where clients reach this node; `leases` is its membership in a cluster;
    `topics` are where dead letters can go.

    Raises `Damaged`, `InvalidSetting`, `Unavailable`.
    """
    tags = parse_tags(settings.timeline.tags)
    stores = await _stores(settings, data_dir, await cluster_id(coordinator))
    if stores is None:
        yield None
        return

    clustered = settings.coordination.kind == "etcd"
    etcd = EtcdSettings.of(settings.coordination) if clustered else None
    async with TimelineService(
        coordinator,
        stores,
        node=settings.node.name,
        clock=clock,
        registry=registry,
        tags=tags,
        drift_ms_max=settings.timeline.drift_ms_max,
        # It chooses buckets, for each message: no secret, and the system's own takes a call.
        rng=random.Random(random.SystemRandom().getrandbits(128)),  # noqa: S311
        address=address,
        version=__version__,
        roles=settings.node.roles.split(","),
        crowd=Crowd(settings.timeline.consumers_best, settings.timeline.consumers_max),
        leases=leases,
        prober=prober,
        dated=etcd.addresses if etcd else (),
        dated_tls=etcd.tls() if etcd else None,
        topics=topics,
    ) as service:
        yield service


async def _stores(settings: Settings, data_dir: Path, cluster: str) -> Stores | None:
    timeline = settings.timeline
    if not timeline.enabled:
        return None
    if timeline.store == "postgres":
        if not timeline.dsn:
            raise InvalidSetting(
                "timeline.store is 'postgres', so set timeline.dsn, such as "
                "postgresql://user:password@host:5432/database"
            )
        return await PostgresStores.connect(
            timeline.dsn, schema=timeline.schema_name, cluster=cluster
        )

    if not settings.coordination.alone:
        _log.info(
            "this node serves no timelines: in a cluster they need timeline.store = 'postgres'"
        )
        return None
    reserve_bytes = settings.storage.disk_free_bytes_min
    return SqliteStores(data_dir / "timelines", reserve_bytes=reserve_bytes)


def parse_tags(text: str) -> dict[str, str]:
    """Labels of the form `stage=test,zone=a`. Raises `InvalidSetting`."""
    tags: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.strip().partition("=")
        if not equals or not _TAG.fullmatch(name):
            raise InvalidSetting(
                f"timeline.tags: {part!r} is not a label; write name=value,name=value"
            )
        if name in _TAGS_TAKEN or name in tags:
            raise InvalidSetting(
                f"timeline.tags: the label {name!r} is reserved or given twice; choose another"
            )
        tags[name] = value
    return tags
