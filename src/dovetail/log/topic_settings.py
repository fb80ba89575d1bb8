"""Every setting that a topic can have, under Kafka's name for it.

Names, types and bounds are those of Kafka 4.3; `dovetail.*` are ours. A setting either has its
meaning here, or it is stored and shown without an effect (`effective` is false, and `doc` says what
applies instead). A value that would promise what a node does not keep is refused.

Values are parsed as Kafka parses them: surrounding blanks do not count, commas separate a list,
and a boolean may be in capitals. The canonical form is stored and shown (`canonical`).
"""

import difflib
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from dovetail.errors import InvalidInput

_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
NO_LIMIT = str(_LONG_MAX)

#: Largest ensemble and quorum of a ledger; the settings of a node have the same limit.
QUORUM_MAX = 64

#: Largest batch that a topic can accept: a request that carries it must fit into one frame.
_BATCH_BYTES_MAX = 100 * 1024 * 1024

_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_FRACTION = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_THROTTLED = re.compile(r"\*|\d+:\d+(,\d+:\d+)*", re.ASCII)


class ConfigType(IntEnum):
    """What a value is, by the numbers of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A setting; `default` is None where a node's own settings say it."""

    name: str
    type: ConfigType
    doc: str
    default: str | None = None
    lowest: int = -_LONG_MAX - 1
    highest: int = _LONG_MAX
    #: A number that fits though it is out of bounds.
    also: int | None = None
    choices: tuple[str, ...] = ()
    #: Kafka's name for the broker's default; empty if it has none.
    broker: str = ""
    effective: bool = True

    def canonical(self, value: str) -> str:
        """The value in its plain form. Raises `InvalidInput` if it does not fit."""
        text = value.strip()
        if self.type in (ConfigType.INT, ConfigType.LONG):
            return self._whole(text)
        if self.type is ConfigType.DOUBLE:
            if not _FRACTION.fullmatch(text):
                raise InvalidInput(f"{self.name} = {value[:80]!r} is not a number")
            if not self.lowest <= float(text) <= self.highest:
                raise InvalidInput(f"{self.name} = {text} is not in {self.bounds}")
            return str(float(text))
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise InvalidInput(f"{self.name} = {value[:80]!r} is neither true nor false")
            text = text.lower()
        if self.type is ConfigType.LIST:
            return self._list(text)
        if self.choices and text not in self.choices:
            raise InvalidInput(f"{self.name} = {value[:80]!r} is not one of {self.bounds}")
        return text

    def _whole(self, text: str) -> str:
        if not _WHOLE.fullmatch(text):
            raise InvalidInput(f"{self.name} = {text[:80]!r} is not a whole number")
        bound = _INT_MAX if self.type is ConfigType.INT else _LONG_MAX
        fits = self.lowest <= int(text) <= min(self.highest, bound)
        if not fits and int(text) != self.also:
            raise InvalidInput(f"{self.name} = {text} is not in {self.bounds}")
        return str(int(text))

    def _list(self, text: str) -> str:
        items = list(dict.fromkeys(item.strip() for item in text.split(","))) if text else []
        plain = ",".join(items)
        if self.choices:
            for item in items:
                if item not in self.choices:
                    raise InvalidInput(f"{self.name} = {item[:80]!r} is not one of {self.bounds}")
        elif items and not _THROTTLED.fullmatch(plain):
            raise InvalidInput(
                f"{self.name} = {text[:80]!r} is neither '*' nor a list of partition:broker"
            )
        return plain

    @property
    def bounds(self) -> str:
        """What fits, for a reader."""
        if self.type is ConfigType.BOOLEAN:
            return "true, false"
        if self.choices:
            return ", ".join(self.choices)
        if self.type in (ConfigType.STRING, ConfigType.LIST):
            return "partition:broker,... or *"
        if self.type is ConfigType.DOUBLE:
            return f"[{self.lowest}, {self.highest}]"
        highest = min(self.highest, _INT_MAX if self.type is ConfigType.INT else _LONG_MAX)
        return f"[{self.lowest}, {highest}]" + ("" if self.also is None else f" or {self.also}")


def _int(name: str, doc: str, **more: Any) -> ConfigKey:
    return ConfigKey(name=name, type=ConfigType.INT, doc=doc, **more)


def _long(name: str, doc: str, **more: Any) -> ConfigKey:
    return ConfigKey(name=name, type=ConfigType.LONG, doc=doc, **more)


def _flag(name: str, doc: str, **more: Any) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=ConfigType.BOOLEAN,
        doc=doc,
        default="false",
        **more,
    )


_CLEANING = (
    ConfigKey(
        name="cleanup.policy",
        type=ConfigType.LIST,
        choices=("compact", "delete"),
        default="delete",
        broker="log.cleanup.policy",
        doc="delete: old records go by age and size. compact: the last record of each key stays. "
        "compact,delete: both. Empty: everything stays.",
    ),
    _long(
        "retention.ms", "Age at which records go; -1: never.", lowest=-1, broker="log.retention.ms"
    ),
    _long(
        "retention.bytes",
        "Bytes a partition keeps; below 0: all.",
        broker="log.retention.bytes",
    ),
    _long(
        "delete.retention.ms",
        "How long a tombstone stays after it was first compacted, and a transaction's marker after "
        "its last record went. Whoever reads from the start should be done by then.",
        lowest=0,
        default="86400000",
        broker="log.cleaner.delete.retention.ms",
    ),
    _long(
        "min.compaction.lag.ms",
        "Age below which records are not compacted; a ledger is as young as its youngest record.",
        lowest=0,
        default="0",
        broker="log.cleaner.min.compaction.lag.ms",
    ),
    _long(
        "max.compaction.lag.ms",
        "Age at which a ledger is closed and compacted, however little of the partition is dirty.",
        lowest=1,
        default=NO_LIMIT,
        broker="log.cleaner.max.compaction.lag.ms",
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        lowest=0,
        highest=1,
        default="0.5",
        broker="log.cleaner.min.cleanable.ratio",
        doc="Compaction begins when more than this part of a partition's closed ledgers was never "
        "compacted.",
    ),
)

_SEGMENTS = (
    _int("segment.bytes", "Size of a ledger.", lowest=64 * 1024, broker="log.segment.bytes"),
    _long("segment.ms", "Age at which a ledger is closed.", lowest=1, broker="log.roll.ms"),
    _long(
        "segment.jitter.ms",
        "No effect: a ledger is closed at its age.",
        lowest=0,
        default="0",
        broker="log.roll.jitter.ms",
        effective=False,
    ),
    _int(
        "segment.index.bytes",
        "No effect: a ledger carries its index.",
        lowest=4,
        default="10485760",
        broker="log.index.size.max.bytes",
        effective=False,
    ),
    _int(
        "index.interval.bytes",
        "No effect: a ledger carries its index.",
        lowest=0,
        default="4096",
        broker="log.index.interval.bytes",
        effective=False,
    ),
    _long(
        "file.delete.delay.ms",
        "No effect: files are shared by all ledgers and go when they are empty.",
        lowest=0,
        default="60000",
        broker="log.segment.delete.delay.ms",
        effective=False,
    ),
    _flag(
        "preallocate",
        "No effect: files are shared by all ledgers.",
        broker="log.preallocate",
        effective=False,
    ),
    _long(
        "flush.messages",
        "No effect: every record is on disk before it is acknowledged.",
        lowest=1,
        default=NO_LIMIT,
        broker="log.flush.interval.messages",
        effective=False,
    ),
    _long(
        "flush.ms",
        "No effect: every record is on disk before it is acknowledged.",
        lowest=0,
        default=NO_LIMIT,
        broker="log.flush.interval.ms",
        effective=False,
    ),
)

_BATCHES = (
    _int(
        "max.message.bytes",
        "Largest batch.",
        lowest=0,
        highest=_BATCH_BYTES_MAX,
        broker="message.max.bytes",
    ),
    ConfigKey(
        name="message.timestamp.type",
        type=ConfigType.STRING,
        choices=("CreateTime", "LogAppendTime"),
        default="CreateTime",
        broker="log.message.timestamp.type",
        doc="Whose clock stamps records.",
    ),
    _long(
        "message.timestamp.before.max.ms",
        "How old a record may be when it comes, with CreateTime; a batch that holds an older "
        "one is refused. Batches are opened for it.",
        lowest=0,
        default=NO_LIMIT,
        broker="log.message.timestamp.before.max.ms",
    ),
    _long(
        "message.timestamp.after.max.ms",
        "How far ahead of the broker's clock a record may be, with CreateTime. Here the default "
        "is no limit; Kafka's is an hour.",
        lowest=0,
        default=NO_LIMIT,
        broker="log.message.timestamp.after.max.ms",
    ),
    ConfigKey(
        name="compression.type",
        type=ConfigType.STRING,
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        default="producer",
        broker="compression.type",
        doc="producer: batches are stored as they came. Otherwise a batch of another codec is "
        "compressed anew by the broker.",
    ),
    _int(
        "compression.gzip.level",
        "Level of batches that the broker compresses; -1: the default of gzip.",
        lowest=1,
        highest=9,
        also=-1,
        default="-1",
        broker="compression.gzip.level",
    ),
    _int(
        "compression.lz4.level",
        "Level of batches that the broker compresses.",
        lowest=1,
        highest=17,
        default="9",
        broker="compression.lz4.level",
    ),
    _int(
        "compression.zstd.level",
        "Level of batches that the broker compresses.",
        lowest=-131_072,
        highest=22,
        default="3",
        broker="compression.zstd.level",
    ),
)

_COPIES = (
    _int(
        "min.insync.replicas",
        "Copies that must be on disk before a record is acknowledged, as dovetail.ack.quorum; the "
        "larger one counts. With more than the topic has copies, acks=all is refused.",
        lowest=1,
        default="1",
        broker="min.insync.replicas",
    ),
    _flag(
        "unclean.leader.election.enable",
        "No effect: an owner that lacks acknowledged records cannot be.",
        broker="unclean.leader.election.enable",
        effective=False,
    ),
    *(
        ConfigKey(
            name=f"{side}.replication.throttled.replicas",
            type=ConfigType.LIST,
            default="",
            effective=False,
            doc="No effect: copies are repaired at storage.repair_bytes_per_second.",
        )
        for side in ("leader", "follower")
    ),
    _flag(
        "dovetail.due",
        "Whether a record with the header dovetail-due or dovetail-delay appears when it is due.",
    ),
    _int("dovetail.ensemble", "Storage nodes that a ledger lies on.", lowest=1, highest=QUORUM_MAX),
    _int("dovetail.write.quorum", "Copies of each record.", lowest=1, highest=QUORUM_MAX),
    _int(
        "dovetail.ack.quorum",
        "Copies that must be on disk before a record is acknowledged.",
        lowest=1,
        highest=QUORUM_MAX,
    ),
    _int(
        "dovetail.read.quorum",
        "Storage nodes of which one surely has an acknowledged record.",
        lowest=1,
        highest=QUORUM_MAX,
    ),
)

_REMOTE = (
    ConfigKey(
        name="remote.storage.enable",
        type=ConfigType.BOOLEAN,
        choices=("false",),
        default="false",
        effective=False,
        doc="Only false: there is no remote tier of a topic; see the archive in docs/spark.md.",
    ),
    *(
        _flag(name, "No effect without remote storage.", effective=False)
        for name in ("remote.log.copy.disable", "remote.log.delete.on.disable")
    ),
    *(
        _long(
            name,
            "No effect without remote storage.",
            lowest=-2,
            default="-2",
            broker=f"log.{name}",
            effective=False,
        )
        for name in ("local.retention.ms", "local.retention.bytes")
    ),
)

CONFIG_KEYS = {key.name: key for key in (*_CLEANING, *_SEGMENTS, *_BATCHES, *_COPIES, *_REMOTE)}


def config_key(name: str) -> ConfigKey:
    """The setting of this name. Raises `InvalidInput` that names the nearest one."""
    key = CONFIG_KEYS.get(name)
    if key is None:
        near = difflib.get_close_matches(name[:80], CONFIG_KEYS, n=1)
        hint = f", the nearest is {near[0]!r}" if near else ""
        known = ", ".join(sorted(CONFIG_KEYS))
        raise InvalidInput(f"unknown topic setting {name[:80]!r}{hint}; known are {known}")
    return key
