"""The section `storage`: the storage node."""

from typing import Literal

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


class StorageSettings(Section):
    """The storage node."""

    durability: Literal["sync", "os"] = setting(
        "sync",
        "'sync': on disk before it is acknowledged. 'os': left to the kernel; a power cut can "
        "lose acknowledged records.",
    )
    # Below 64 KiB a segment is mostly header; places in it are 32 bits, with room for one group.
    segment_bytes: ByteCount = setting(
        256 * MIB, "Size at which a new segment begins.", ge=64 * KIB, le=2 * GIB
    )
    # 0 switches the check off. The default holds the largest request a client may have in flight
    # in an ordinary set-up, so that a write that was begun can also be completed.
    disk_free_bytes_min: ByteCount = setting(
        64 * MIB, "The node refuses writes while less than this is free on the disk.", ge=0, le=TIB
    )
    # 0 never rewrites a segment; 1 rewrites at the first dead byte, over and over.
    compaction_live_ratio: float = setting(
        0.5, "A segment is rewritten when less than this fraction of it is live.", ge=0.0, le=0.95
    )
    # Below a second, every restart would move all that the node holds; for a week, a second node
    # may die meanwhile. Ceph and HDFS wait ten minutes too.
    repair_after_ms: DurationMs = setting(
        10 * MINUTE_MS,
        "A storage node that is down for this long is replaced.",
        ge=SECOND_MS,
        le=7 * DAY_MS,
    )
    # Below 64 KiB a second a lost disk of a terabyte takes half a year.
    repair_bytes_per_second: ByteCount = setting(
        32 * MIB, "Most bytes a second that this node copies for repair.", ge=64 * KIB, le=TIB
    )
    # A terabyte takes three days at the default; HDFS and ZFS aim at one to three weeks.
    scrub_bytes_per_second: ByteCount = setting(
        4 * MIB,
        "Bytes a second at which this node reads everything it stores, to find damage; 0: never.",
        ge=0,
        le=TIB,
    )
