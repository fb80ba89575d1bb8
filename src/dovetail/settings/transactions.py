"""The section `transactions`: transactional producers."""

from dovetail.settings.kinds import DAY_MS, MINUTE_MS, DurationMs, Section, setting


class TransactionsSettings(Section):
    """Transactions."""

    # Each is a partition with its own coordinator; more spread the ids over more brokers.
    partitions: int = setting(
        8,
        "Partitions of the internal topic for transactions; used when it is created.",
        ge=1,
        le=1_000,
    )
    # An open transaction holds up readers of what is committed for so long. Kafka's limit is the
    # same.
    timeout_ms_max: DurationMs = setting(
        15 * MINUTE_MS,
        "Longest transaction timeout that a producer may ask for.",
        ge=1,
        le=2**31 - 1,
    )
    id_expiry_ms: DurationMs = setting(
        7 * DAY_MS,
        "A transactional id that is not used for this long is forgotten.",
        ge=1,
        le=2**63 - 1,
    )
