"""The section `groups`: consumer groups."""

from typing import Self

from pydantic import model_validator

from dovetail.settings.kinds import DAY_MS, MINUTE_MS, SECOND_MS, DurationMs, Section, setting


class GroupsSettings(Section):
    """Consumer groups."""

    # Each is a partition with its own coordinator; more spread the groups over more brokers.
    partitions: int = setting(
        8, "Partitions of the internal topic for groups; used when it is created.", ge=1, le=1_000
    )
    # Below 100 ms an ordinary pause of a client's garbage collector looks like its death.
    session_timeout_ms_min: DurationMs = setting(
        SECOND_MS, "Shortest session timeout that a member may ask for.", ge=100, le=DAY_MS
    )
    # A dead member keeps its partitions for the length of its session. Kafka's limit is the same.
    session_timeout_ms_max: DurationMs = setting(
        30 * MINUTE_MS, "Longest session timeout that a member may ask for.", ge=100, le=DAY_MS
    )
    # Kafka waits 3 s; here a group of one, the usual first try, should begin at once.
    initial_rebalance_delay_ms: DurationMs = setting(
        200,
        "Time that a new group waits for more members before it assigns partitions.",
        ge=0,
        le=5 * MINUTE_MS,
    )
    offsets_retention_ms: DurationMs = setting(
        7 * DAY_MS,
        "Committed offsets of an empty group are deleted after this time; -1: never.",
        ge=-1,
        le=2**63 - 1,
    )
    # The metadata of all members goes to one of them, in one frame, at every rebalance.
    group_size_max: int = setting(1_000, "Most members of one group.", ge=1, le=100_000)

    # Kafka's numbers. A shorter interval makes rebalances faster, as a member hears of them by its
    # heartbeats, and costs a broker a small request more often.
    consumer_heartbeat_interval_ms: DurationMs = setting(
        5 * SECOND_MS,
        "How often members of groups of the new protocol (KIP-848) send heartbeats.",
        ge=100,
        le=MINUTE_MS,
    )
    consumer_session_timeout_ms: DurationMs = setting(
        45 * SECOND_MS,
        "How long such a member may be silent before its partitions go to others.",
        ge=300,
        le=DAY_MS,
    )

    # Of share groups (KIP-932), with Kafka's numbers; a group can have its own (`kafka-configs`).
    # Work that takes longer than a lock is renewed, or done twice.
    share_lock_ms: DurationMs = setting(
        30 * SECOND_MS,
        "How long a record stays locked for the member of a share group that acquired it.",
        ge=100,
        le=DAY_MS,
    )
    share_deliveries_max: int = setting(
        5,
        "Deliveries after which a record that was never accepted is given up.",
        ge=1,
        le=1_000,
    )
    # What is in flight is stored with every acknowledgement, at worst 8 bytes for each record.
    share_in_flight_max: int = setting(
        2_000, "Most records of a partition in flight in a share group.", ge=1, le=10_000
    )
    share_heartbeat_interval_ms: DurationMs = setting(
        5 * SECOND_MS, "How often members of share groups send heartbeats.", ge=100, le=MINUTE_MS
    )
    share_session_timeout_ms: DurationMs = setting(
        45 * SECOND_MS,
        "How long a member of a share group may be silent before it is removed.",
        ge=300,
        le=DAY_MS,
    )
    share_size_max: int = setting(200, "Most members of one share group.", ge=1, le=1_000)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.session_timeout_ms_min > self.session_timeout_ms_max:
            raise ValueError(
                f"session_timeout_ms_min ({self.session_timeout_ms_min}) is more than "
                f"session_timeout_ms_max ({self.session_timeout_ms_max}): no timeout would be valid"
            )
        if self.consumer_heartbeat_interval_ms >= self.consumer_session_timeout_ms:
            raise ValueError(
                f"consumer_heartbeat_interval_ms ({self.consumer_heartbeat_interval_ms}) is not "
                f"less than consumer_session_timeout_ms ({self.consumer_session_timeout_ms}): "
                "every member would be taken for dead"
            )
        if self.share_heartbeat_interval_ms >= self.share_session_timeout_ms:
            raise ValueError(
                f"share_heartbeat_interval_ms ({self.share_heartbeat_interval_ms}) is not less "
                f"than share_session_timeout_ms ({self.share_session_timeout_ms}): every member "
                "would be taken for dead"
            )
        return self
