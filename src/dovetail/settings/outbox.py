"""The section `outbox`."""

from typing import Literal, Self

from pydantic import model_validator

from dovetail.settings.kinds import (
    DAY_MS,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    ByteCount,
    DurationMs,
    Section,
    setting,
)


class OutboxSettings(Section):
    """The outbox: publishing inside a database transaction, and the relay that sends."""

    backend: Literal["kafka", "kafka_async", "db", "test"] = setting(
        "db", "Where publish goes: the outbox table, Kafka itself, or memory for tests."
    )
    database: str = setting(
        "", "Address of the relay's database, such as postgresql://user@host/name.", secret=True
    )
    kafka: str = setting(
        "", "Kafka brokers to send to, host:port, separated by commas; empty: as client.bootstrap."
    )
    timelines: str = setting(
        "", "Dovetail node for the messages of `schedule`, host:port; empty: as outbox.kafka."
    )
    workers: int = setting(2, "Threads of a relay; each drains one topic at a time.", ge=1, le=256)
    # A shard is every n-th of 64 slots (`outbox/schema.py`).
    shards: int = setting(1, "Shards of a new topic: how many workers can share it.", ge=1, le=64)
    # A broker remembers five batches of a producer; their ids are written down as one text.
    batch_messages_max: int = setting(
        1_000, "Messages that are sent and deleted together.", ge=1, le=10_000
    )
    # Below Kafka's default limit of 1 MiB for a record batch, with room for its own bytes.
    batch_bytes_max: ByteCount = setting(
        900_000, "Bytes that are sent together.", ge=KIB, le=64 * MIB
    )
    # The holder renews three times in this time, also while it waits for the broker.
    lock_ms: DurationMs = setting(
        MINUTE_MS,
        "A lock that is not renewed for this long can be taken over.",
        ge=SECOND_MS,
        le=DAY_MS,
    )
    idle_ms: DurationMs = setting(
        500, "Longest time between two polls for messages.", ge=10, le=MINUTE_MS
    )
    retry_ms: DurationMs = setting(
        SECOND_MS, "Delay before the first retry of a topic that failed.", ge=10, le=DAY_MS
    )
    retry_ms_max: DurationMs = setting(
        MINUTE_MS, "Longest delay before a retry of a topic that failed.", ge=10, le=DAY_MS
    )
    delivery_ms: DurationMs = setting(
        30 * SECOND_MS, "Time to try a batch before its topic counts as failed.", ge=100, le=DAY_MS
    )
    partitioner: Literal["crc32", "murmur2"] = setting(
        "crc32",
        "How a key is mapped to a partition: crc32 as librdkafka, murmur2 as the Java client.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "none", "Compression of the batches that are sent to Kafka, and stored there."
    )
    compact_topics: str = setting(
        "",
        "Topics, separated by commas, whose batches keep only the last message per key; *: all.",
    )
    serialise: bool = setting(
        True,
        "MariaDB, MySQL: publishers of one key wait for each other's commit, to keep their order.",
    )
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = setting(
        "plaintext", "Protocol of the connections to Kafka."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = setting(
        "PLAIN", "How to log in."
    )
    sasl_username: str = setting("", "Name to log in with.")
    sasl_password: str = setting("", "Password to log in with.", secret=True)
    ssl_ca_file: str = setting("", "File with the CAs to trust (PEM); empty: the system's CAs.")
    ssl_certificate_file: str = setting("", "Client certificate for Kafka (PEM); empty: none.")
    ssl_key_file: str = setting("", "Key of that certificate (PEM); empty: it is in the same file.")

    def login(self) -> dict[str, str]:
        """TLS and login as librdkafka wants them."""
        given = {"security.protocol": self.security_protocol.upper()}
        if self.security_protocol.startswith("sasl"):
            given |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.sasl_username,
                "sasl.password": self.sasl_password,
            }
        files = {
            "ssl.ca.location": self.ssl_ca_file,
            "ssl.certificate.location": self.ssl_certificate_file,
            "ssl.key.location": self.ssl_key_file or self.ssl_certificate_file,
        }
        if self.security_protocol.endswith("ssl"):
            given |= {name: path for name, path in files.items() if path}
        return given

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.ssl_key_file and not self.ssl_certificate_file:
            raise ValueError("ssl_key_file is set without ssl_certificate_file; set both")
        return self

    @model_validator(mode="after")
    def _check_retry(self) -> Self:
        if self.retry_ms > self.retry_ms_max:
            raise ValueError(
                f"retry_ms ({self.retry_ms}) is more than retry_ms_max ({self.retry_ms_max})"
            )
        return self
