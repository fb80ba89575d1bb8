"""The section `log`: topics and partitions."""

from dovetail.settings.kinds import (
    DAY_MS,
    GIB,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    TIB,
    ByteCount,
    DurationMs,
    Section,
    setting,
)


class LogSettings(Section):
    """Topics and partitions."""

    # A partition costs a few KiB of memory and a ledger; the rest is what one node can start.
    partitions_default: int = setting(
        1, "Partitions of a topic that is created without a partition count.", ge=1, le=10_000
    )
    topic_auto_create: bool = setting(
        True, "Whether a topic is created when a client first names it."
    )
    # -1 keeps for ever. 0 is allowed by Kafka and means: gone at the next check.
    retention_ms: DurationMs = setting(
        7 * DAY_MS, "Age at which records are deleted; -1: never.", ge=-1, le=2**63 - 1
    )
    retention_bytes: ByteCount = setting(
        -1, "Bytes kept per partition; -1: no limit.", ge=-1, le=2**63 - 1
    )
    # Every ledger is an entry of the coordination store: below 4 KiB the chain outgrows its data.
    ledger_bytes_max: ByteCount = setting(
        256 * MIB,
        "Size at which a new ledger begins; checked every 8 MiB or 1,024 batches.",
        ge=4 * KIB,
        le=64 * GIB,
    )
    # Retention removes whole ledgers, so a record can outlive its retention by this long.
    ledger_age_ms_max: DurationMs = setting(
        DAY_MS, "Age at which a new ledger begins.", ge=100, le=365 * DAY_MS
    )
    # Copies of each record: on one node 1; rules in `storage/quorum/arithmetic.py`.
    ensemble: int = setting(1, "Storage nodes that a ledger is spread over.", ge=1, le=64)
    write_quorum: int = setting(1, "Copies of each record.", ge=1, le=64)
    ack_quorum: int = setting(
        1, "Copies that must be on disk before a record is acknowledged.", ge=1, le=64
    )
    # 0 serves every read from the storage node.
    tail_cache_bytes_max: ByteCount = setting(
        64 * MIB, "Memory for the newest records of all partitions.", ge=0, le=TIB
    )
    # 1 MiB and the 12 bytes in front of a batch: Kafka's message.max.bytes, which clients expect.
    message_bytes_max: ByteCount = setting(
        1_048_588, "Largest record batch that a topic accepts.", ge=KIB, le=GIB
    )
    selection: str = setting(
        "least-loaded",
        "Strategy that places new ledgers and vacant partitions: least-loaded, round-robin, "
        "random, or your own as module:callable.",
        min_length=1,
    )
    # More often than every 10 ms, the check would be all that the node does.
    retention_check_ms: DurationMs = setting(
        MINUTE_MS, "Time between two checks of retention.", ge=10, le=DAY_MS
    )
    # As Kafka's log.cleaner.backoff.ms.
    compaction_check_ms: DurationMs = setting(
        15 * SECOND_MS, "Time between two checks for something to compact.", ge=10, le=DAY_MS
    )
    # 32 bytes a key: two million keys at the default. With less, a pass goes less far.
    compaction_memory_bytes: ByteCount = setting(
        64 * MIB,
        "Memory for the keys of the partition that is being compacted.",
        ge=64 * KIB,
        le=TIB,
    )
    # Counts what is read and what is written.
    compaction_bytes_per_second: ByteCount = setting(
        64 * MIB,
        "Most bytes a second that this node reads and writes to compact.",
        ge=64 * KIB,
        le=TIB,
    )
