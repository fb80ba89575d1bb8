"""Topics: their names, their settings, their life.

    CREATING → READY → DELETING → (gone; the name is free again)

A topic is registered in state CREATING, then its partitions are, then it is READY. Deletion
makes it DELETING in one step; clients see it no more, its ledgers go, then its keys. One node is
the master of that work; when it dies, another takes its place (`topic_work.py`).
"""

import difflib
import re
from dataclasses import dataclass
from enum import Enum

import msgspec

from dovetail.errors import InvalidInput
from dovetail.storage import SINGLE, Quorum
from dovetail.storage.quorum.arithmetic import check_quorum

#: The limits of Kafka's own names; a name is part of file names and metrics elsewhere.
NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")

#: Partitions of one topic. Each costs a key, a claim at start and some kilobytes of memory.
PARTITIONS_MAX = 10_000


#: Largest ensemble and quorum of a ledger; the settings of a node have the same limit.
QUORUM_MAX = 64


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


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A setting that a topic can have of its own, under Kafka's name for it."""

    name: str
    kind: type[int] | type[str]
    lowest: int = 0
    highest: int = (1 << 63) - 1
    choices: tuple[str, ...] = ()
    doc: str = ""


CONFIG_KEYS = {
    key.name: key
    for key in (
        ConfigKey("retention.ms", int, -1, doc="Age at which records go; -1: never."),
        ConfigKey("retention.bytes", int, -1, doc="Bytes a partition keeps; -1: all."),
        ConfigKey("segment.bytes", int, 64 * 1024, (1 << 31) - 1, doc="Size of a ledger."),
        ConfigKey("segment.ms", int, 1_000, doc="Age at which a ledger is closed."),
        ConfigKey("max.message.bytes", int, 128, 100 * 1024 * 1024, doc="Largest batch."),
        ConfigKey(
            "message.timestamp.type",
            str,
            choices=("CreateTime", "LogAppendTime"),
            doc="Whose clock stamps records.",
        ),
        ConfigKey(
            "cleanup.policy",
            str,
            choices=("delete",),
            doc="How old records go; compaction is not supported.",
        ),
        ConfigKey(
            "compression.type",
            str,
            choices=("producer",),
            doc="Batches are stored as they came.",
        ),
        ConfigKey(
            "dovetail.ensemble", int, 1, QUORUM_MAX, doc="Storage nodes that a ledger lies on."
        ),
        ConfigKey("dovetail.write.quorum", int, 1, QUORUM_MAX, doc="Copies of each record."),
        ConfigKey(
            "dovetail.ack.quorum",
            int,
            1,
            QUORUM_MAX,
            doc="Copies that must be on disk before a record is acknowledged.",
        ),
        ConfigKey(
            "dovetail.read.quorum",
            int,
            1,
            QUORUM_MAX,
            doc="Storage nodes of which one surely has an acknowledged record.",
        ),
    )
}


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

    def __post_init__(self) -> None:
        if self.read_quorum == 0:
            object.__setattr__(self, "read_quorum", self.quorum.noes_needed)

    def with_overrides(self, config: dict[str, str]) -> "TopicConfig":
        """These defaults with what a topic sets itself; `config` was checked."""
        quorum = Quorum(
            int(config.get("dovetail.ensemble", self.quorum.ensemble)),
            int(config.get("dovetail.write.quorum", self.quorum.write)),
            int(config.get("dovetail.ack.quorum", self.quorum.ack)),
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
        )

    def as_strings(self) -> dict[str, str]:
        """Every setting under Kafka's name."""
        return {
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(self.retention_bytes),
            "segment.bytes": str(self.ledger_bytes_max),
            "segment.ms": str(self.ledger_age_ms_max),
            "max.message.bytes": str(self.batch_bytes_max),
            "message.timestamp.type": "LogAppendTime" if self.stamps_append_time else "CreateTime",
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "dovetail.ensemble": str(self.quorum.ensemble),
            "dovetail.write.quorum": str(self.quorum.write),
            "dovetail.ack.quorum": str(self.quorum.ack),
            "dovetail.read.quorum": str(self.read_quorum),
        }


def check_name(name: str) -> None:
    """Raises `InvalidInput` if a topic cannot be called so."""
    if not name or len(name) > NAME_LENGTH_MAX or name in (".", "..") or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"topic name {name[:80]!r} is not 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' "
            "or '-'"
        )


def check_partitions(count: int) -> None:
    """Raises `InvalidInput` if a topic cannot have so many."""
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidInput(f"a topic cannot have {count} partitions, only 1 to {PARTITIONS_MAX}")


def config_key(name: str) -> ConfigKey:
    """The setting of this name. Raises `InvalidInput` that names the nearest one."""
    key = CONFIG_KEYS.get(name)
    if key is None:
        near = difflib.get_close_matches(name, CONFIG_KEYS, n=1)
        hint = f", the nearest is {near[0]!r}" if near else ""
        known = ", ".join(sorted(CONFIG_KEYS))
        raise InvalidInput(f"unknown topic setting {name!r}{hint}; known are {known}")
    return key


def config_for_copies(copies: int) -> dict[str, str]:
    """The settings of a topic that is asked for by its number of copies (L2).

    A majority acknowledges: so many nodes can die as with any system that elects by majority.
    """
    return {
        "dovetail.ensemble": str(copies),
        "dovetail.write.quorum": str(copies),
        "dovetail.ack.quorum": str(copies // 2 + 1),
    }


def check_config(config: dict[str, str], defaults: TopicConfig | None = None) -> None:
    """Raises `InvalidInput` that names the first setting that does not fit.

    With the `defaults` of the node, also if its quorums do not fit each other (L2).
    """
    for name, value in config.items():
        key = config_key(name)
        if key.kind is int:
            if not re.fullmatch(r"-?\d{1,19}", value):
                raise InvalidInput(f"{name} = {value!r} is not a whole number")
            if not key.lowest <= int(value) <= key.highest:
                raise InvalidInput(f"{name} = {value} is not in [{key.lowest}, {key.highest}]")
        elif value not in key.choices:
            raise InvalidInput(f"{name} = {value!r} is not one of {', '.join(key.choices)}")
    if defaults is not None:
        own = defaults.with_overrides(config)
        check_quorum(own.quorum, read=own.read_quorum)
