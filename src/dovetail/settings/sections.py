"""What can be set: every section, its settings, their defaults and their bounds.

Each bound has its reason beside it. A value outside its bounds is refused when the node starts,
not when the limit is first needed.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from dovetail.errors import InvalidSetting
from dovetail.settings.client import ClientSettings
from dovetail.settings.coordination import CoordinationSettings
from dovetail.settings.given import DEFAULT_ORIGIN, Origin
from dovetail.settings.http import HttpSettings
from dovetail.settings.kinds import ByteCount, DurationMs, is_secret
from dovetail.settings.kinds import Section as _Section
from dovetail.settings.metrics import MetricsSettings
from dovetail.settings.outbox import OutboxSettings
from dovetail.settings.security import SecuritySettings
from dovetail.settings.stream import SharedStreamSettings
from dovetail.settings.tracing import TracingSettings

_KIB = 1024
_MIB = 1024**2
_GIB = 1024**3
_TIB = 1024**4
_SECOND_MS = 1000
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000

#: Addresses that mean "every interface" when bound; no client can connect to them by that name.
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", "*"})

Port = Annotated[int, Field(ge=0, le=65535)]


class NodeSettings(_Section):
    """Who this node is, and where its files are."""

    # The name appears in keys of the coordination store and in file names: hence no separators.
    name: str = Field(
        default="dovetail-1",
        description="Name of this node, unique in its cluster.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    )
    # Kafka's node ids are 32-bit and not negative; 0 is left to mean "none" in our own protocols.
    node_id: int = Field(
        default=1,
        ge=1,
        le=2**31 - 1,
        description="Number of this node in the Kafka protocol, unique.",
    )
    data_dir: Path = Field(
        default=Path("dovetail-data"), description="Folder of everything that this node stores."
    )
    roles: str = Field(
        default="overseer,broker,storage",
        pattern=r"^(overseer|broker|storage)(,(overseer|broker|storage))*$",
        description=(
            "What this node does: broker (serves clients), storage (keeps ledgers), overseer "
            "(answers questions about the cluster)."
        ),
    )


class KafkaSettings(_Section):
    """The Kafka front door."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on for clients."
    )
    port: Port = Field(
        default=9092, description="Port to listen on for clients; 0 takes any free one."
    )
    advertised_host: str = Field(
        default="", description="Host that clients are told to connect to; empty: the one in use."
    )
    advertised_port: Port = Field(
        default=0, description="Port that clients are told to connect to; 0: the one in use."
    )
    # Each idle connection costs about 20 KiB; a million is more than file descriptors allow.
    connections_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Connections at once; more are closed at once.",
    )
    # 100 MiB is what Kafka allows (socket.request.max.bytes); a length is a signed 32-bit number.
    frame_bytes_max: ByteCount = Field(
        default=100 * _MIB, ge=_KIB, le=2**31 - 1, description="Largest request of a client."
    )
    # What the node may hold for requests that are not answered; more is left in the sockets.
    request_bytes_in_flight_max: ByteCount = Field(
        default=256 * _MIB,
        ge=_KIB,
        le=_TIB,
        description="Request bytes held at once over all connections; then reading pauses.",
    )
    # Below a second, a client that sends one heartbeat every 3 s could never stay connected.
    idle_ms: DurationMs = Field(
        default=10 * _MINUTE_MS,
        ge=_SECOND_MS,
        le=7 * _DAY_MS,
        description="A connection with no request for this long is closed.",
    )
    # A client that sends a byte a second holds memory meanwhile; 30 s carry 100 MiB at 28 Mbit/s.
    frame_read_ms: DurationMs = Field(
        default=30 * _SECOND_MS,
        ge=10,
        le=60 * _MINUTE_MS,
        description="A request, once begun, must be complete within this time.",
    )

    @model_validator(mode="after")
    def _check_frame_fits(self) -> Self:
        if self.request_bytes_in_flight_max < self.frame_bytes_max:
            raise ValueError(
                f"request_bytes_in_flight_max ({self.request_bytes_in_flight_max}) must be at "
                f"least frame_bytes_max ({self.frame_bytes_max}), or the largest request that is "
                "allowed would wait for ever"
            )
        return self

    def door(self, *, port_bound: int) -> str:
        """The address at which this machine reaches the node, given the port that it listens on."""
        host = "127.0.0.1" if self.host in _WILDCARD_HOSTS else self.host
        return f"[{host}]:{port_bound}" if ":" in host else f"{host}:{port_bound}"

    def advertised(self, *, port_bound: int) -> tuple[str, int]:
        """Host and port that clients are told, given the port that the node listens on.

        A node that listens on every interface has no one address, so it tells its host name.
        """
        host = self.advertised_host
        if not host:
            host = socket.gethostname() if self.host in _WILDCARD_HOSTS else self.host
        return host, self.advertised_port or port_bound


class StorageSettings(_Section):
    """The storage node."""

    durability: Literal["sync", "os"] = Field(
        default="sync",
        description="'sync': on disk before it is acknowledged. 'os': left to the kernel; a power "
        "cut can lose what was acknowledged.",
    )
    # Below 64 KiB a segment is mostly header; places in it are 32 bits, with room for one group.
    segment_bytes: ByteCount = Field(
        default=256 * _MIB,
        ge=64 * _KIB,
        le=2 * _GIB,
        description="Size at which a new segment begins.",
    )
    # 0 switches the check off. The default holds the largest request a client may have in flight
    # in an ordinary set-up, so that a write that was begun can also be completed.
    disk_free_bytes_min: ByteCount = Field(
        default=64 * _MIB,
        ge=0,
        le=_TIB,
        description="Writes are refused while less is free on the disk.",
    )
    # 0 never rewrites a segment; 1 rewrites at the first dead byte, over and over.
    compaction_live_ratio: float = Field(
        default=0.5,
        ge=0.0,
        le=0.95,
        description="A segment is rewritten when less than this part of it is still live.",
    )
    # Below a second, every restart would move all that the node holds; for a week, a second node
    # may die meanwhile. Ceph and HDFS wait ten minutes too.
    repair_after_ms: DurationMs = Field(
        default=10 * _MINUTE_MS,
        ge=_SECOND_MS,
        le=7 * _DAY_MS,
        description="A storage node that is away for this long is replaced by others.",
    )
    # Below 64 KiB a second a lost disk of a terabyte takes half a year.
    repair_bytes_per_second: ByteCount = Field(
        default=32 * _MIB,
        ge=64 * _KIB,
        le=_TIB,
        description="Bytes a second that this node copies to repair what lies on too few nodes.",
    )


class LogSettings(_Section):
    """Topics and partitions."""

    # A partition costs a few KiB of memory and a ledger; the rest is what one node can start.
    partitions_default: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Partitions of a topic that is created without a number.",
    )
    topic_auto_create: bool = Field(
        default=True, description="Whether a topic begins to exist when a client first names it."
    )
    # -1 keeps for ever. 0 is allowed by Kafka and means: gone at the next check.
    retention_ms: DurationMs = Field(
        default=7 * _DAY_MS,
        ge=-1,
        le=2**63 - 1,
        description="Age at which records are removed; -1: never.",
    )
    retention_bytes: ByteCount = Field(
        default=-1, ge=-1, le=2**63 - 1, description="Bytes kept per partition; -1: no limit."
    )
    # Every ledger is an entry of the coordination store: below 4 KiB the chain outgrows its data.
    ledger_bytes_max: ByteCount = Field(
        default=256 * _MIB,
        ge=4 * _KIB,
        le=64 * _GIB,
        description="Size at which a new ledger begins; looked at every 8 MiB or 1,024 batches.",
    )
    # Retention removes whole ledgers, so a record can outlive its retention by this long.
    ledger_age_ms_max: DurationMs = Field(
        default=_DAY_MS, ge=100, le=365 * _DAY_MS, description="Age at which a new ledger begins."
    )
    # Copies of each record: on one node 1; rules in `storage/quorum/arithmetic.py`.
    ensemble: int = Field(
        default=1, ge=1, le=64, description="Storage nodes that a ledger is spread over."
    )
    write_quorum: int = Field(default=1, ge=1, le=64, description="Copies of each record.")
    ack_quorum: int = Field(
        default=1, ge=1, le=64, description="Copies that must be on disk before it is acknowledged."
    )
    # 0 serves every read from the storage node.
    tail_cache_bytes_max: ByteCount = Field(
        default=64 * _MIB,
        ge=0,
        le=_TIB,
        description="Memory for the newest records of all partitions.",
    )
    # 1 MiB and the 12 bytes in front of a batch: Kafka's message.max.bytes, which clients expect.
    message_bytes_max: ByteCount = Field(
        default=1_048_588, ge=_KIB, le=_GIB, description="Largest record batch that a topic takes."
    )
    selection: str = Field(
        default="least-loaded",
        min_length=1,
        description=(
            "Who gets new ledgers and vacant partitions: least-loaded, round-robin, random, or "
            "your own as module:callable."
        ),
    )
    # More often than every 10 ms, the check would be all that the node does.
    retention_check_ms: DurationMs = Field(
        default=_MINUTE_MS, ge=10, le=_DAY_MS, description="Time between two checks of retention."
    )


class GroupsSettings(_Section):
    """Consumer groups."""

    # Each is a partition with its own coordinator; more spread the groups over more brokers.
    partitions: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="Partitions of the groups' topic, when it is first made.",
    )
    # Below 100 ms an ordinary pause of a client's garbage collector looks like its death.
    session_timeout_ms_min: DurationMs = Field(
        default=_SECOND_MS,
        ge=100,
        le=_DAY_MS,
        description="Shortest session that a member may ask for.",
    )
    # A dead member keeps its partitions for the length of its session. Kafka's limit is the same.
    session_timeout_ms_max: DurationMs = Field(
        default=30 * _MINUTE_MS,
        ge=100,
        le=_DAY_MS,
        description="Longest session a member may ask for.",
    )
    # Kafka waits 3 s; here a group of one, the usual first try, should begin at once.
    initial_rebalance_delay_ms: DurationMs = Field(
        default=200,
        ge=0,
        le=5 * _MINUTE_MS,
        description="Time that a new group waits for more members before it deals partitions.",
    )
    offsets_retention_ms: DurationMs = Field(
        default=7 * _DAY_MS,
        ge=-1,
        le=2**63 - 1,
        description="Positions of an empty group are forgotten after this; -1: never.",
    )
    # The metadata of all members goes to one of them, in one frame, at every rebalance.
    group_size_max: int = Field(
        default=1_000, ge=1, le=100_000, description="Members of one group."
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.session_timeout_ms_min > self.session_timeout_ms_max:
            raise ValueError(
                f"session_timeout_ms_min ({self.session_timeout_ms_min}) is more than "
                f"session_timeout_ms_max ({self.session_timeout_ms_max}): no session would be legal"
            )
        return self


class TimelineSettings(_Section):
    """Timelines: messages due at a time."""

    enabled: bool = Field(default=True, description="Whether this node serves timelines.")
    store: Literal["sqlite", "postgres"] = Field(
        default="sqlite",
        description="'sqlite': files of this node. 'postgres': for a cluster.",
    )
    dsn: str = Field(
        default="", description="PostgreSQL's address, such as postgresql://user@host/database."
    )
    # It is part of statements, so nothing but a plain name is taken.
    schema_name: str = Field(
        default="dovetail",
        pattern=r"^[a-z_][a-z0-9_]{0,40}$",
        description="PostgreSQL schema of the tables.",
    )
    # Machines under NTP are within some ten milliseconds; below that, nobody's clock is right.
    drift_ms_max: DurationMs = Field(
        default=_SECOND_MS,
        ge=10,
        le=60 * _MINUTE_MS,
        description="A node whose clock is off by more stops pushing messages.",
    )
    # All brokers of a timeline read the same rows, so its consumers are best together on few.
    consumers_best: int = Field(
        default=4,
        ge=1,
        le=10_000,
        description="Consumers of one timeline gather at a broker up to this number.",
    )
    consumers_max: int = Field(
        default=7,
        ge=1,
        le=10_000,
        description="Above this number some are told to go to another broker.",
    )
    tags: str = Field(
        default="", description="Labels on every metric of timelines: name=value,name=value."
    )


class LoggingSettings(_Section):
    """What the node says about itself."""

    format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="'text' for people, 'json' a line for programs; 'auto': by terminal.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is written."
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting as `dovetail config show` prints it."""

    name: str
    value: str | int | float | bool
    origin: Origin
    description: str


class Settings(BaseModel):
    """Everything that can be set; built by `load_settings`, or by hand in tests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: NodeSettings = NodeSettings()
    coordination: CoordinationSettings = CoordinationSettings()
    kafka: KafkaSettings = KafkaSettings()
    http: HttpSettings = HttpSettings()
    storage: StorageSettings = StorageSettings()
    log: LogSettings = LogSettings()
    groups: GroupsSettings = GroupsSettings()
    outbox: OutboxSettings = OutboxSettings()
    stream: SharedStreamSettings = SharedStreamSettings()
    timeline: TimelineSettings = TimelineSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    logging: LoggingSettings = LoggingSettings()
    client: ClientSettings = ClientSettings()
    security: SecuritySettings = SecuritySettings()

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_message_fits(self) -> Self:
        if self.kafka.frame_bytes_max < self.log.message_bytes_max:
            raise ValueError(
                f"kafka.frame_bytes_max ({self.kafka.frame_bytes_max}) must be at least "
                f"log.message_bytes_max ({self.log.message_bytes_max}), or no request could "
                "carry the largest message"
            )
        return self

    def origin(self, name: str) -> Origin:
        """Where the value of `section.name` was given."""
        return self._origins.get(name, DEFAULT_ORIGIN)

    def with_origins(self, origins: dict[str, Origin]) -> "Settings":
        """The same values, with where each was given."""
        copy = self.model_copy()
        copy._origins = dict(origins)
        return copy

    def shown(self) -> Iterator[Shown]:
        """Every setting in the order of the sections."""
        for section_name in type(self).model_fields:
            section: _Section = getattr(self, section_name)
            for field_name, field in type(section).model_fields.items():
                value = getattr(section, field_name)
                if value and is_secret(field.json_schema_extra):
                    value = "(set, not shown)"
                name = f"{section_name}.{field_name}"
                yield Shown(
                    name=name,
                    value=str(value) if isinstance(value, Path) else value,
                    origin=self.origin(name),
                    description=field.description or "",
                )

    def outbox_bootstrap(self) -> str:
        """The Kafka that the outbox sends to. Raises as `bootstrap`."""
        return self.outbox.kafka or self.bootstrap()

    def bootstrap(self) -> str:
        """The address (host:port) at which this machine's clients reach the node.

        Raises `InvalidSetting` if the node takes any free port, which nobody can know in advance.
        """
        if self.client.bootstrap:
            return self.client.bootstrap
        if self.kafka.port == 0:
            raise InvalidSetting(
                "kafka.port is 0 (any free port), so the node's address is not known; "
                "give it with --bootstrap host:port"
            )
        host = "127.0.0.1" if self.kafka.host in _WILDCARD_HOSTS else self.kafka.host
        return f"{host}:{self.kafka.port}"
