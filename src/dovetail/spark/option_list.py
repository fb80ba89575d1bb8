"""Every option that `format("dovetail")` knows: one list, for the code and for the page.

It holds the options of Spark's Kafka source and sink and all settings of Kafka's consumer and
producer (4.3), as `kafka.*`. Each has a *kind*:

    same      as in Spark's source or sink
    differs   nearly that; the text says what is different
    own       not in Spark's
    idle      accepted, but has no effect here; the log says so once
    refused   refused, because ignoring it would change what is read, written or admitted

`docs/spark.md` contains the list (`table`, compared by a test). Options that are not in it are
refused with the nearest name.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import PREFIX

Side = Literal["read", "write", "both"]
Kind = Literal["same", "differs", "own", "idle", "refused"]

#: Behind the name of a secret: names the environment variable that has it.
FROM_ENVIRONMENT = ".env"


@dataclass(frozen=True, slots=True)
class Option:
    """An option: where it is used, what it does here, and a text for people."""

    name: str
    side: Side
    kind: Kind
    text: str
    #: A password or a key: not kept in the catalog.
    secret: bool = False


def _each(names: str, side: Side, kind: Kind, text: str, *, secret: bool = False) -> list[Option]:
    return [Option(name, side, kind, text, secret) for name in names.split()]


def _kafka(names: str, side: Side, kind: Kind, text: str, *, secret: bool = False) -> list[Option]:
    return _each(" ".join(PREFIX + name for name in names.split()), side, kind, text, secret=secret)


_OF_THE_SOURCE = [
    *_each("subscribe", "read", "same", "topics, `a,b`"),
    *_each("subscribePattern", "read", "differs", "a regular expression of Python, not of Java"),
    *_each("assign", "read", "same", '`{"a": [0, 1]}`'),
    *_each(
        "startingOffsets",
        "read",
        "same",
        '`earliest` (a batch), `latest` (a stream) or `{"a": {"0": 23, "1": -2}}`',
    ),
    *_each("startingTimestamp", "read", "same", "milliseconds, for all partitions"),
    *_each("startingOffsetsByTimestamp", "read", "same", '`{"a": {"0": 1700000000000}}`'),
    *_each(
        "startingOffsetsByTimestampStrategy",
        "read",
        "same",
        "`error` or `latest`, where no record is that recent",
    ),
    *_each("endingOffsets", "read", "differs", "batches; behind the end of a partition: refused"),
    *_each("endingTimestamp endingOffsetsByTimestamp", "read", "same", "batches"),
    *_each("failOnDataLoss", "read", "same", "`true`: a query fails if records are gone"),
    *_each("includeHeaders", "both", "same", "`false`; the sink writes headers if they are there"),
    *_each("maxOffsetsPerTrigger", "read", "same", "streams; a batch ignores it"),
    *_each("minOffsetsPerTrigger", "read", "same", "streams; a batch ignores it"),
    *_each("maxTriggerDelay", "read", "same", "`15m`: then fewer than the least are read too"),
    *_each("minPartitions", "read", "same", "at least so many tasks"),
    *_each("maxRecordsPerPartition", "read", "same", "at most so many offsets for one task"),
    *_each(
        "maxBytesPerPartition",
        "read",
        "own",
        "batches: `134217728`; about so many bytes, as they are stored, for one task",
    ),
    *_each("kafkaConsumer.pollTimeoutMs", "read", "same", "how long a task waits for a record"),
    *_each("groupIdPrefix", "read", "idle", "reading needs no consumer group"),
    *_each(
        "fetchOffset.numRetries fetchOffset.retryIntervalMs",
        "read",
        "idle",
        "a request is tried again until `kafka.default.api.timeout.ms` is over",
    ),
]

_OF_THE_SINK = [
    *_each("topic", "write", "same", "for all rows; goes over the column `topic`"),
    *_each("term", "write", "own", "the master's term, where masters are elected"),
    *_each("idConflict", "write", "own", "`keep` or `fail`, see Writing"),
    *_each(
        "txnAppId txnVersion",
        "write",
        "own",
        "batches: Delta Lake's names; a version of an application is written once, see Writing",
    ),
    # Spark hands these on.
    *_each("queryName checkpointLocation path", "write", "same", "for Spark itself"),
]

_CONNECTION = [
    *_kafka("bootstrap.servers", "both", "same", "`host:port,host:port`"),
    *_each("bootstrap", "both", "own", "short for `kafka.bootstrap.servers`"),
    *_kafka("client.id", "both", "same", "`dovetail-spark`"),
    *_kafka("request.timeout.ms", "both", "same", "`30000`: then an answer is asked for again"),
    *_kafka(
        "socket.connection.setup.timeout.ms",
        "both",
        "differs",
        "`5000`; does not grow with further tries",
    ),
    *_kafka("default.api.timeout.ms", "read", "same", "`60000`: then a request is given up"),
    *_kafka("delivery.timeout.ms", "write", "differs", "`60000`: then a row is given up"),
]

_CONSUMER = [
    *_kafka("isolation.level", "read", "same", "`read_uncommitted` or `read_committed`"),
    *_kafka(
        "group.id", "read", "differs", "gets the positions, for lag tools; they decide nothing"
    ),
    *_kafka(
        "fetch.max.bytes max.partition.fetch.bytes",
        "read",
        "differs",
        "`2097152`; a task reads one partition, so the smaller of both counts",
    ),
    *_kafka("fetch.max.wait.ms", "read", "same", "`500`"),
    *_kafka("fetch.min.bytes", "read", "same", "`1`"),
    *_kafka("check.crcs", "read", "idle", "checksums are always compared"),
    *_kafka("client.rack", "read", "idle", "leaders are read from"),
    *_kafka("allow.auto.create.topics", "read", "idle", "reading creates no topic"),
    *_kafka("exclude.internal.topics", "read", "idle", "a pattern matches no internal topic"),
    *_kafka("max.poll.records", "read", "idle", "a fetch is one Arrow batch"),
    *_kafka(
        "group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms "
        "max.poll.interval.ms partition.assignment.strategy session.timeout.ms "
        "auto.commit.interval.ms share.acknowledgement.mode share.acquire.mode",
        "read",
        "idle",
        "reading needs no consumer group",
    ),
    *_kafka(
        "auto.offset.reset", "read", "refused", "by Spark's too; where to begin: `startingOffsets`"
    ),
    *_kafka("enable.auto.commit", "read", "refused", "by Spark's too; Spark keeps the positions"),
    *_kafka(
        "key.deserializer value.deserializer",
        "read",
        "refused",
        "by Spark's too; columns are binary, cast them",
    ),
]

_PRODUCER = [
    *_kafka("compression.type", "write", "same", "`none`, `gzip`, `snappy`, `lz4`, `zstd`"),
    *_kafka(
        "compression.gzip.level compression.lz4.level compression.zstd.level",
        "write",
        "same",
        "the level of that codec",
    ),
    *_kafka("batch.size", "write", "differs", "`950000`; a smaller one makes smaller batches"),
    *_kafka("max.request.size", "write", "differs", "`1048576`; a batch is not made larger"),
    *_kafka("partitioner.ignore.keys", "write", "same", "`false`"),
    *_kafka("acks", "write", "idle", "always `all`"),
    *_kafka("enable.idempotence", "write", "idle", "always: each row is stored once"),
    *_kafka(
        "buffer.memory linger.ms max.block.ms max.in.flight.requests.per.connection "
        "metadata.max.idle.ms partitioner.adaptive.partitioning.enable "
        "partitioner.availability.timeout.ms retries",
        "write",
        "idle",
        "a task sends whole Arrow batches, and waits for them",
    ),
    *_kafka(
        "transactional.id transaction.timeout.ms transaction.two.phase.commit.enable",
        "write",
        "refused",
        "the sink writes no transactions; rows are stored once without",
    ),
    *_kafka(
        "partitioner.class",
        "write",
        "refused",
        "a class of Java; give rows a column `partition`",
    ),
    *_kafka(
        "key.serializer value.serializer",
        "write",
        "refused",
        "by Spark's too; keys and values are strings or binary",
    ),
]

_SECURITY = [
    *_kafka(
        "security.protocol", "both", "same", "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`"
    ),
    *_kafka(
        "sasl.mechanism",
        "both",
        "differs",
        "`SCRAM-SHA-512`, `SCRAM-SHA-256`, `PLAIN` (over TLS); by itself that of the login module",
    ),
    *_kafka(
        "sasl.jaas.config",
        "both",
        "differs",
        "ScramLoginModule and PlainLoginModule with `username` and `password`",
        secret=True,
    ),
    *_kafka("sasl.username", "both", "own", "librdkafka's names work too"),
    *_kafka("sasl.password ssl.key.pem", "both", "own", "librdkafka's names work too", secret=True),
    *_kafka(
        "ssl.truststore.location ssl.truststore.type ssl.truststore.certificates",
        "both",
        "same",
        "`JKS`, `PKCS12`, `PEM`; without one, the authorities of this system, not Java's. The "
        "driver alone reads the file",
    ),
    *_kafka("ssl.truststore.password", "both", "same", "of a `JKS` or `PKCS12`", secret=True),
    *_kafka(
        "ssl.keystore.location ssl.keystore.type ssl.keystore.certificate.chain",
        "both",
        "same",
        "`JKS`, `PKCS12`, `PEM`",
    ),
    *_kafka(
        "ssl.keystore.password ssl.keystore.key ssl.key.password",
        "both",
        "same",
        "for the keystore",
        secret=True,
    ),
    *_kafka(
        "ssl.ca.location ssl.certificate.location ssl.key.location ssl.ca.pem ssl.certificate.pem "
        "enable.ssl.certificate.verification",
        "both",
        "own",
        "librdkafka's names work too",
    ),
    *_kafka("ssl.endpoint.identification.algorithm", "both", "same", "`https`; empty: not checked"),
    *_kafka(
        "ssl.enabled.protocols ssl.protocol ssl.cipher.suites ssl.provider "
        "ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation",
        "both",
        "idle",
        "TLS 1.2 or 1.3 with the ciphers of Python",
    ),
    *_kafka(
        "ssl.engine.factory.class sasl.client.callback.handler.class "
        "sasl.login.callback.handler.class sasl.login.class security.providers config.providers "
        "interceptor.classes",
        "both",
        "refused",
        "names classes of Java, and there is none here",
    ),
    *_kafka(
        "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms "
        "sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter "
        "sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms",
        "both",
        "idle",
        "there is no token to renew",
    ),
    *_kafka(
        "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin "
        "sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter "
        "sasl.kerberos.ticket.renew.window.factor",
        "both",
        "refused",
        "there is no login by Kerberos",
    ),
]

_OAUTH = [
    Option(f"kafka.sasl.oauthbearer.{name}", "both", "refused", "there is no login by OAuth")
    for name in (
        *(f"assertion.claim.{claim}" for claim in ("aud", "iss", "sub", "jti.include")),
        *(f"assertion.claim.{claim}.seconds" for claim in ("exp", "nbf")),
        *(f"assertion.{what}" for what in ("algorithm", "file", "template.file")),
        *(f"assertion.private.key.{what}" for what in ("file", "passphrase")),
        *(f"client.credentials.client.{what}" for what in ("id", "secret")),
        *(f"jwks.endpoint.{what}" for what in ("url", "refresh.ms", "retry.backoff.ms")),
        "jwks.endpoint.retry.backoff.max.ms",
        *(f"jwt.{what}.class" for what in ("retriever", "validator")),
        *(f"expected.{what}" for what in ("audience", "issuer")),
        *("clock.skew.seconds", "header.urlencode", "token.endpoint.url"),
        *("scope", "scope.claim.name", "sub.claim.name"),
    )
]

_IDLE = [
    *_kafka(
        "metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy "
        "client.dns.lookup connections.max.idle.ms reconnect.backoff.max.ms reconnect.backoff.ms "
        "retry.backoff.max.ms retry.backoff.ms socket.connection.setup.timeout.max.ms",
        "both",
        "idle",
        "leaders are looked up anew, and connections opened again, after each failure",
    ),
    *_kafka("receive.buffer.bytes send.buffer.bytes", "both", "idle", "the system's sizes"),
    *_kafka(
        "enable.metrics.push metric.reporters metrics.num.samples metrics.recording.level "
        "metrics.sample.window.ms",
        "both",
        "idle",
        "Spark shows the figures of a query",
    ),
]

OPTIONS = (
    *_CONNECTION,
    *_OF_THE_SOURCE,
    *_CONSUMER,
    *_OF_THE_SINK,
    *_PRODUCER,
    *_SECURITY,
    *_OAUTH,
    *_IDLE,
)


def _by_name() -> dict[str, Option]:
    found = {one.name.lower(): one for one in OPTIONS}
    for one in OPTIONS:
        if one.secret:
            name = one.name + FROM_ENVIRONMENT
            text = f"names an environment variable of the driver that has `{one.name}`"
            found[name.lower()] = Option(name, one.side, "own", text)
    return found


#: By its name in small letters: options are taken without regard to case.
BY_NAME: Mapping[str, Option] = _by_name()


def look_up(name: str, side: Literal["read", "write"], *, both_sides: bool) -> Option:
    """The option of a name. Raises `InvalidInput` for one that is not known, or of the other side.

    A table of the catalog has options of `both_sides`.
    """
    option = BY_NAME.get(name.lower())
    if option is None:
        near = difflib.get_close_matches(name.lower(), BY_NAME, n=1)
        hint = f"did you mean {BY_NAME[near[0]].name!r}?" if near else "docs/spark.md lists all"
        raise InvalidInput(f"option {name!r} is unknown ({hint})")
    if option.kind == "refused":
        raise InvalidInput(f"option {option.name!r} is not supported: {option.text}")
    if option.side not in (side, "both") and not both_sides:
        other = "reading" if option.side == "read" else "writing"
        raise InvalidInput(f"option {option.name!r} is for {other}")
    return option


def table() -> Iterator[str]:
    """The lines of the table in docs/spark.md; options with one text share a line."""
    yield "| option | of | here |"
    yield "|---|---|---|"
    words = {"same": "", "differs": "differs: ", "own": "ours: ", "idle": "no effect: "}
    rows: dict[tuple[str, str], list[str]] = {}
    for one in OPTIONS:
        text = words.get(one.kind, "refused: ") + one.text
        side = {"read": "source", "write": "sink", "both": "both"}[one.side]
        rows.setdefault((side, text), []).append(f"`{one.name}`")
    for (side, text), names in rows.items():
        yield f"| {', '.join(names)} | {side} | {text} |"


if __name__ == "__main__":
    print("\n".join(table()))
