"""Topics: their names, their settings, their states.

    CREATING → READY → DELETING → (gone; the name is free again)

A topic is registered in state CREATING, then its partitions are, then it is READY. A deletion sets
DELETING in one step; from then on clients no longer see the topic, then its ledgers go, then its
keys. One broker is the master of that work; if it dies, another takes its place (`topic_work.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from dovetail.compression import CODECS
from dovetail.errors import InvalidInput
from dovetail.log.compaction.plan import Rules
from dovetail.log.topic_settings import CONFIG_KEYS, config_key
from dovetail.storage import SINGLE, Quorum
from dovetail.storage.quorum.arithmetic import check_quorum

#: Partitions of one topic. Each costs a key, a claim at start and some kilobytes of memory.
PARTITIONS_MAX = 10_000


class TopicState(Enum):
    """Where a topic is in its life."""

    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


class TopicRecord(msgspec.Struct, frozen=True):
    """What the coordination service holds of a topic; `config` has only what was set."""

    name: str
    id: str
    partitions: int
    created_ms: int
    state: TopicState = TopicState.CREATING
    config: dict[str, str] = {}
    internal: bool = False
    #: The node that creates or deletes it; when that one dies, another puts itself here.
    master: int = -1
    #: By partition, the storage nodes that somebody wants it on; of others the load decides.
    assigned: dict[int, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings, defaults filled in."""

    retention_ms: int
    retention_bytes: int
    ledger_bytes_max: int
    ledger_age_ms_max: int
    batch_bytes_max: int
    stamps_append_time: bool = False
    quorum: Quorum = SINGLE
    #: 0: the least that meets what was acknowledged.
    read_quorum: int = 0
    #: All the rest by name, in plain form.
    rest: Mapping[str, str] = field(default_factory=dict)
    #: Whether batches are looked at more closely than Kafka's format asks for (`admission.py`).
    examines: bool = field(init=False, default=False)
    #: Whether the last record of each key stays, and others go (L17).
    compacts: bool = field(init=False, default=False)
    #: Whether records may say that they are due later (K11).
    due: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.read_quorum == 0:
            object.__setattr__(self, "read_quorum", self.quorum.noes_needed)
        object.__setattr__(self, "rest", {**_REST, **self.rest})
        examines = any(self.rest[name] != _REST[name] for name in _EXAMINED)
        object.__setattr__(self, "examines", examines)
        object.__setattr__(self, "compacts", "compact" in self._policies)
        object.__setattr__(self, "due", self.rest["dovetail.due"] == "true")

    def with_overrides(self, config: Mapping[str, str]) -> "TopicConfig":
        """These defaults with what a topic sets itself; `config` was checked."""
        write = int(config.get("dovetail.write.quorum", self.quorum.write))
        ack = int(config.get("dovetail.ack.quorum", self.quorum.ack))
        insync = int(config.get("min.insync.replicas", self.setting("min.insync.replicas")))
        quorum = Quorum(
            int(config.get("dovetail.ensemble", self.quorum.ensemble)),
            write,
            max(ack, min(insync, write)),
        )
        inherited = self.read_quorum if quorum == self.quorum else 0
        return TopicConfig(
            retention_ms=int(config.get("retention.ms", self.retention_ms)),
            retention_bytes=int(config.get("retention.bytes", self.retention_bytes)),
            ledger_bytes_max=int(config.get("segment.bytes", self.ledger_bytes_max)),
            ledger_age_ms_max=int(config.get("segment.ms", self.ledger_age_ms_max)),
            batch_bytes_max=int(config.get("max.message.bytes", self.batch_bytes_max)),
            stamps_append_time=config.get("message.timestamp.type") == "LogAppendTime"
            or (self.stamps_append_time and "message.timestamp.type" not in config),
            quorum=quorum,
            read_quorum=int(config.get("dovetail.read.quorum", inherited)),
            rest={name: config.get(name, value) for name, value in self.rest.items()},
        )

    def setting(self, name: str) -> str:
        """A setting that no field of its own holds."""
        return self.rest[name]

    @property
    def deletes(self) -> bool:
        """Whether old records go."""
        return "delete" in self._policies

    @property
    def _policies(self) -> list[str]:
        return self.setting("cleanup.policy").split(",")

    @property
    def roll_age_ms(self) -> int:
        """Age at which a ledger is closed; open ones are not compacted."""
        latest = int(self.setting("max.compaction.lag.ms"))
        return min(self.ledger_age_ms_max, latest) if self.compacts else self.ledger_age_ms_max

    @property
    def compaction(self) -> Rules:
        """When and how the topic is compacted."""
        return Rules(
            dirty_ratio_min=float(self.setting("min.cleanable.dirty.ratio")),
            lag_ms_min=int(self.setting("min.compaction.lag.ms")),
            lag_ms_max=int(self.setting("max.compaction.lag.ms")),
            tombstones_ms=int(self.setting("delete.retention.ms")),
            ledger_bytes_max=self.ledger_bytes_max,
        )

    @property
    def codec(self) -> int | None:
        """The codec that batches get; None: the one that they have."""
        name = self.setting("compression.type")
        return None if name == "producer" else CODECS.index(name.replace("uncompressed", "none"))

    def as_strings(self) -> dict[str, str]:
        """Every setting under Kafka's name."""
        own = {
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(self.retention_bytes),
            "segment.bytes": str(self.ledger_bytes_max),
            "segment.ms": str(self.ledger_age_ms_max),
            "max.message.bytes": str(self.batch_bytes_max),
            "message.timestamp.type": "LogAppendTime" if self.stamps_append_time else "CreateTime",
            "dovetail.ensemble": str(self.quorum.ensemble),
            "dovetail.write.quorum": str(self.quorum.write),
            "dovetail.ack.quorum": str(self.quorum.ack),
            "dovetail.read.quorum": str(self.read_quorum),
        }
        return {**own, **self.rest}


#: The settings that `TopicConfig` has no field for, with their defaults.
_REST = {
    key.name: key.default
    for key in CONFIG_KEYS.values()
    if key.default is not None and key.name != "message.timestamp.type"
}

#: Those for which a batch is examined when it comes.
_EXAMINED = (
    "compression.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "min.insync.replicas",
)


def check_partitions(count: int) -> None:
    """Raises `InvalidInput` if a topic cannot have so many."""
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidInput(f"a topic cannot have {count} partitions, only 1 to {PARTITIONS_MAX}")


def config_for_copies(copies: int) -> dict[str, str]:
    """The settings of a topic that is asked for by its number of copies (L2).

    A majority acknowledges: so many nodes can die as with any system that elects by majority.
    """
    return {
        "dovetail.ensemble": str(copies),
        "dovetail.write.quorum": str(copies),
        "dovetail.ack.quorum": str(copies // 2 + 1),
    }


def check_config(config: Mapping[str, str], defaults: TopicConfig | None = None) -> dict[str, str]:
    """The settings in plain form. Raises `InvalidInput` that names the first that does not fit.

    With the `defaults` of the node, also if they do not fit each other (L2).
    """
    plain = {name: config_key(name).canonical(value) for name, value in config.items()}
    if defaults is not None:
        own = defaults.with_overrides(plain)
        check_quorum(own.quorum, read=own.read_quorum)
        soonest, latest = own.setting("min.compaction.lag.ms"), own.setting("max.compaction.lag.ms")
        if int(soonest) > int(latest):
            raise InvalidInput(
                f"min.compaction.lag.ms = {soonest} is above max.compaction.lag.ms = {latest}"
            )
    return plain
