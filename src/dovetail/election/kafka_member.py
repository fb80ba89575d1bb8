"""A member whose shared log is a topic: assembles the usual parts from the settings."""

from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.election.campaign import campaigner_of
from dovetail.election.kafka_client import ClientConfig
from dovetail.election.kafka_log import KafkaSharedLog
from dovetail.election.member import ClusterMember
from dovetail.election.metrics import ElectionMetrics
from dovetail.election.settings import ElectionSettings
from dovetail.election.transport import Transport
from dovetail.election.vote_file import VoteFile


def member_on_kafka(
    settings: ElectionSettings,
    bootstrap: str,
    *,
    transport: Transport | None,
    coordinator: Coordinator | None = None,
    config: ClientConfig | None = None,
    metrics: ElectionMetrics | None = None,
    clock: Clock | None = None,
) -> ClusterMember:
    """A member that meets the others in a topic of Dovetail or Kafka. Raises `InvalidSetting`.

    COORDINATOR needs the `coordinator`. `config` goes to the Kafka clients (login, TLS).
    """
    settings.check()
    return ClusterMember(
        settings.endpoint,
        algorithm=settings.algorithm,
        times=settings.times,
        shared_log=KafkaSharedLog(
            bootstrap,
            topic=settings.coordination_stream_id,
            environment=settings.environment_identifier,
            timeout_ms=settings.timeout_ms,
            config=config,
            clock=clock,
            signing=settings.signing,
        ),
        transport=transport,
        vote_file=VoteFile(settings.vote_path),
        campaigner=campaigner_of(settings, coordinator, clock),
        metrics=metrics,
        clock=clock,
    )
