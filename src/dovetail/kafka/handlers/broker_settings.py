"""A broker's settings under Kafka's names.

Tools read a few of Kafka's settings from a broker before they do their work. They get the values
that apply here, in Kafka's terms; none can be changed through Kafka's protocol.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dovetail.kafka.handlers.backend import Backend
from dovetail.kafka.handlers.fetch_sessions import SESSIONS_MAX
from dovetail.kafka.handlers.share.sessions import SESSIONS_MAX as SHARE_SESSIONS_MAX
from dovetail.log.groups.assignors import ASSIGNORS
from dovetail.log.producers import EXPIRY_MS
from dovetail.log.topic_settings import CONFIG_KEYS


class BrokerSetting(NamedTuple):
    """One of Kafka's settings of a broker: its value here, and what it follows."""

    value: Callable[[Backend], str]
    doc: str


def _always(value: object) -> BrokerSetting:
    return BrokerSetting(lambda _: str(value), f"always `{value}`")


def _listener(backend: Backend) -> str:
    here = backend.brokers().get(backend.node_id)
    return f"PLAINTEXT://{here.host}:{here.port}" if here else ""


def _rack(backend: Backend) -> str:
    here = backend.brokers().get(backend.node_id)
    return (here.rack or "") if here else ""


_OF_GROUPS: Mapping[str, BrokerSetting] = {
    "group.consumer.assignors": _always(",".join(ASSIGNORS)),
    "group.consumer.heartbeat.interval.ms": BrokerSetting(
        lambda b: str(b.groups.settings.consumer.heartbeat_interval_ms),
        "`groups.consumer_heartbeat_interval_ms`",
    ),
    "group.consumer.max.size": BrokerSetting(
        lambda b: str(b.groups.settings.group_size_max), "`groups.group_size_max`"
    ),
    "group.consumer.session.timeout.ms": BrokerSetting(
        lambda b: str(b.groups.settings.consumer.session_timeout_ms),
        "`groups.consumer_session_timeout_ms`",
    ),
    "group.coordinator.rebalance.protocols": _always("classic,consumer,share"),
    "group.initial.rebalance.delay.ms": BrokerSetting(
        lambda b: str(b.groups.settings.initial_rebalance_delay_ms),
        "`groups.initial_rebalance_delay_ms`",
    ),
    "group.max.session.timeout.ms": BrokerSetting(
        lambda b: str(b.groups.settings.session_timeout_ms_max), "`groups.session_timeout_ms_max`"
    ),
    "group.max.size": BrokerSetting(
        lambda b: str(b.groups.settings.group_size_max), "`groups.group_size_max`"
    ),
    "group.min.session.timeout.ms": BrokerSetting(
        lambda b: str(b.groups.settings.session_timeout_ms_min), "`groups.session_timeout_ms_min`"
    ),
    "group.share.delivery.count.limit": BrokerSetting(
        lambda b: str(b.groups.settings.share.deliveries_max), "`groups.share_deliveries_max`"
    ),
    "group.share.heartbeat.interval.ms": BrokerSetting(
        lambda b: str(b.groups.settings.share.heartbeat_interval_ms),
        "`groups.share_heartbeat_interval_ms`",
    ),
    "group.share.max.share.sessions": _always(SHARE_SESSIONS_MAX),
    "group.share.max.size": BrokerSetting(
        lambda b: str(b.groups.settings.share_size_max), "`groups.share_size_max`"
    ),
    "group.share.partition.max.record.locks": BrokerSetting(
        lambda b: str(b.groups.settings.share.in_flight_max), "`groups.share_in_flight_max`"
    ),
    "group.share.record.lock.duration.ms": BrokerSetting(
        lambda b: str(b.groups.settings.share.lock_ms), "`groups.share_lock_ms`"
    ),
    "group.share.session.timeout.ms": BrokerSetting(
        lambda b: str(b.groups.settings.share.session_timeout_ms),
        "`groups.share_session_timeout_ms`",
    ),
    "offset.metadata.max.bytes": BrokerSetting(
        lambda b: str(b.groups.settings.offset_metadata_bytes_max), "a limit that is built in"
    ),
    "offsets.retention.minutes": BrokerSetting(
        lambda b: str(b.groups.settings.offsets_retention_ms // 60_000),
        "`groups.offsets_retention_ms`",
    ),
}

_OF_TRANSACTIONS: Mapping[str, BrokerSetting] = {
    "producer.id.expiration.ms": _always(EXPIRY_MS),
    "transaction.max.timeout.ms": BrokerSetting(
        lambda b: str(b.transactions.settings.timeout_ms_max), "`transactions.timeout_ms_max`"
    ),
    "transaction.partition.verification.enable": _always("true"),
    "transaction.two.phase.commit.enable": _always("false"),
    "transactional.id.expiration.ms": BrokerSetting(
        lambda b: str(b.transactions.settings.id_expiry_ms), "`transactions.id_expiry_ms`"
    ),
}

_OF_BROKERS: Mapping[str, BrokerSetting] = {
    "advertised.listeners": BrokerSetting(_listener, "the address that clients are told"),
    "auto.create.topics.enable": BrokerSetting(
        lambda b: str(b.topic_auto_create).lower(), "`log.topic_auto_create`"
    ),
    "broker.id": BrokerSetting(lambda b: str(b.node_id), "`node.node_id`"),
    "broker.rack": BrokerSetting(_rack, "`node.rack`"),
    "default.replication.factor": BrokerSetting(
        lambda b: str(b.log.defaults.quorum.write), "`log.write_quorum`"
    ),
    "delete.topic.enable": _always("true"),
    "log.cleaner.enable": _always("true"),
    "max.incremental.fetch.session.cache.slots": _always(SESSIONS_MAX),
    "node.id": BrokerSetting(lambda b: str(b.node_id), "`node.node_id`"),
    "num.partitions": BrokerSetting(
        lambda b: str(b.partitions_default), "`log.partitions_default`"
    ),
    "process.roles": _always("broker"),
    "remote.log.storage.system.enable": _always("false"),
}

#: Beside those that are the defaults of topics (`ConfigKey.broker`).
BROKER_SETTINGS: Mapping[str, BrokerSetting] = dict(
    sorted({**_OF_BROKERS, **_OF_GROUPS, **_OF_TRANSACTIONS}.items())
)


def kafka_settings(backend: Backend) -> dict[str, str]:
    """Kafka's broker settings by name."""
    defaults = backend.log.defaults.as_strings()
    topics = {key.broker: defaults[name] for name, key in sorted(CONFIG_KEYS.items()) if key.broker}
    return topics | {name: one.value(backend) for name, one in BROKER_SETTINGS.items()}
