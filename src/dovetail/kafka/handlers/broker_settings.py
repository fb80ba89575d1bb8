"""A broker's settings under Kafka's names.

Tools read a few of Kafka's settings from a broker before they do their work. They get the values
that apply here, in Kafka's terms; none can be changed through Kafka's protocol.
"""

from dovetail.kafka.handlers.backend import Backend
from dovetail.log.groups.assignors import ASSIGNORS
from dovetail.log.groups.types import GroupSettings
from dovetail.log.share.group_settings import SETTINGS
from dovetail.log.topic_settings import CONFIG_KEYS


def kafka_settings(backend: Backend) -> dict[str, str]:
    """Kafka's broker settings by name."""
    defaults = backend.log.defaults.as_strings()
    topics = {key.broker: defaults[name] for name, key in sorted(CONFIG_KEYS.items()) if key.broker}
    limits = backend.groups.settings
    here = backend.brokers().get(backend.node_id)
    transactions = backend.transactions.settings
    of_transactions = {
        "transaction.max.timeout.ms": str(transactions.timeout_ms_max),
        "transactional.id.expiration.ms": str(transactions.id_expiry_ms),
    }

    return {
        **topics,
        "advertised.listeners": f"PLAINTEXT://{here.host}:{here.port}" if here else "",
        "auto.create.topics.enable": str(backend.topic_auto_create).lower(),
        "broker.id": str(backend.node_id),
        "default.replication.factor": str(backend.log.defaults.quorum.write),
        "delete.topic.enable": "true",
        "group.consumer.assignors": ",".join(ASSIGNORS),
        "group.consumer.heartbeat.interval.ms": str(limits.consumer_heartbeat_interval_ms),
        "group.consumer.session.timeout.ms": str(limits.consumer_session_timeout_ms),
        "group.coordinator.rebalance.protocols": "classic,consumer,share",
        "group.initial.rebalance.delay.ms": str(limits.initial_rebalance_delay_ms),
        "group.max.session.timeout.ms": str(limits.session_timeout_ms_max),
        "group.max.size": str(limits.group_size_max),
        "group.min.session.timeout.ms": str(limits.session_timeout_ms_min),
        "node.id": str(backend.node_id),
        "num.partitions": str(backend.partitions_default),
        "offset.metadata.max.bytes": str(limits.offset_metadata_bytes_max),
        "offsets.retention.minutes": str(limits.offsets_retention_ms // 60_000),
        "process.roles": "broker",
        **of_transactions,
        **_of_shares(limits),
    }


def _of_shares(limits: GroupSettings) -> dict[str, str]:
    return {
        "group.share.delivery.count.limit": str(limits.share.deliveries_max),
        "group.share.enable": "true",
        "group.share.heartbeat.interval.ms": str(limits.share.heartbeat_interval_ms),
        "group.share.max.size": str(limits.share_size_max),
        "group.share.partition.max.record.locks": str(limits.share.in_flight_max),
        "group.share.record.lock.duration.ms": str(limits.share.lock_ms),
        "group.share.session.timeout.ms": str(limits.share.session_timeout_ms),
    }


def group_settings(backend: Backend, group_id: str) -> dict[str, str]:
    """Kafka's settings of a group; those of share groups can be its own."""
    limits = backend.groups.settings
    own = backend.shares.settings.of(group_id)
    return {
        **{name: setting.show(own) for name, setting in SETTINGS.items()},
        "consumer.heartbeat.interval.ms": str(limits.consumer_heartbeat_interval_ms),
        "consumer.session.timeout.ms": str(limits.consumer_session_timeout_ms),
    }
