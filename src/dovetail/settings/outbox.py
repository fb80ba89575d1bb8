"""The section `outbox`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dovetail.settings.kinds import SECRET, ByteCount, DurationMs, Section

_KIB = 1024
_MIB = 1024**2
_SECOND_MS = 1000
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000


class OutboxSettings(Section):
    """The outbox: publishing inside a database transaction, and the relay that sends."""

    backend: Literal["kafka", "kafka_async", "db", "test"] = Field(
        default="db",
        description="Where publish goes: the outbox table, Kafka itself, or memory for tests.",
    )
    database: str = Field(
        default="",
        description="Address of the relay's database, such as postgresql://user@host/name.",
        json_schema_extra=SECRET,
    )
    kafka: str = Field(
        default="",
        description="Kafka to send to, host:port with commas; empty: as client.bootstrap.",
    )
    workers: int = Field(
        default=2, ge=1, le=256, description="Threads of a relay; each drains one topic at a time."
    )
    # A shard is every n-th of 64 slots (`outbox/schema.py`).
    shards: int = Field(
        default=1, ge=1, le=64, description="Shards of a new topic: workers that can share it."
    )
    # A broker remembers five batches of a producer; their ids are written down as one text.
    batch_messages_max: int = Field(
        default=1_000, ge=1, le=10_000, description="Messages that are sent and deleted together."
    )
    # Below Kafka's default limit of 1 MiB for a record batch, with room for its own bytes.
    batch_bytes_max: ByteCount = Field(
        default=900_000, ge=_KIB, le=64 * _MIB, description="Bytes that are sent together."
    )
    # The holder renews three times in this time, also while it waits for the broker.
    lock_ms: DurationMs = Field(
        default=_MINUTE_MS,
        ge=_SECOND_MS,
        le=_DAY_MS,
        description="A lock that is not renewed for this long can be taken over.",
    )
    idle_ms: DurationMs = Field(
        default=500, ge=10, le=_MINUTE_MS, description="Longest time between looks for messages."
    )
    retry_ms: DurationMs = Field(
        default=_SECOND_MS, ge=10, le=_DAY_MS, description="First delay of a topic that failed."
    )
    retry_ms_max: DurationMs = Field(
        default=_MINUTE_MS, ge=10, le=_DAY_MS, description="Longest delay of a topic that failed."
    )
    delivery_ms: DurationMs = Field(
        default=30 * _SECOND_MS,
        ge=100,
        le=_DAY_MS,
        description="Time that a batch is tried before its topic counts as failed.",
    )
    partitioner: Literal["crc32", "murmur2"] = Field(
        default="crc32",
        description="Partition of a key: crc32 as librdkafka, murmur2 as the Java client.",
    )
    compact_topics: str = Field(
        default="",
        description="Topics, with commas, of which a batch keeps the last message per key; *: all.",
    )
    serialise: bool = Field(
        default=True,
        description="MariaDB, MySQL: publishers of one key wait for each other's commit (order).",
    )
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="How to reach the Kafka."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="PLAIN", description="How to log in."
    )
    sasl_username: str = Field(default="", description="Name to log in with.")
    sasl_password: str = Field(
        default="", description="Password to log in with.", json_schema_extra=SECRET
    )
    ssl_ca_file: str = Field(default="", description="Certificates to trust; empty: the system's.")

    def login(self) -> dict[str, str]:
        """TLS and login as librdkafka wants them."""
        given = {"security.protocol": self.security_protocol.upper()}
        if self.security_protocol.startswith("sasl"):
            given |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.sasl_username,
                "sasl.password": self.sasl_password,
            }
        if self.security_protocol.endswith("ssl") and self.ssl_ca_file:
            given["ssl.ca.location"] = self.ssl_ca_file
        return given

    @model_validator(mode="after")
    def _check_retry(self) -> Self:
        if self.retry_ms > self.retry_ms_max:
            raise ValueError(
                f"retry_ms ({self.retry_ms}) is more than retry_ms_max ({self.retry_ms_max})"
            )
        return self
