"""UpdateFeatures and DescribeQuorum: requests that Kafka's controllers answer.

The release fixes the features: what the code can do is on, and ApiVersions reports it. The
coordination service takes the place of a quorum of controllers; each broker answers for it.
"""

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call

#: The lowest and the highest level of each feature; the highest is in use.
FEATURES: dict[str, tuple[int, int]] = {
    "group.version": (0, 1),
    "share.version": (0, 1),
    # A producer that sees 2 speaks KIP-890's protocol; every other one is served all the same.
    "transaction.version": (0, 2),
}

#: Kafka's topic of the cluster's metadata, the only one with a quorum.
_METADATA_TOPIC = "__cluster_metadata"
_UNKNOWN = -1


async def update_features(
    backend: Backend, call: Call, request: m.UpdateFeaturesRequest
) -> m.UpdateFeaturesResponse:
    """Takes a level that is in use, and refuses every other."""
    if not call.access.allows(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME):
        return m.UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    wrong = {
        update.feature: _refusal(update.feature, update.max_version_level)
        for update in request.feature_updates
    }
    refused = {name: message for name, message in wrong.items() if message is not None}
    code = ErrorCode.INVALID_UPDATE_VERSION if refused else ErrorCode.NONE
    return m.UpdateFeaturesResponse(
        error_code=code,
        error_message=next(iter(refused.values()), None),
        results=tuple(
            m.UpdateFeaturesResponseResult(feature=name, error_code=code, error_message=message)
            for name, message in wrong.items()
        )
        if call.api_version < 2
        else (),
    )


def _refusal(feature: str, level: int) -> str | None:
    known = FEATURES.get(feature)
    if known is None:
        return f"Invalid update version {level} for feature {feature}. It is not known here."
    if level != known[1]:
        return (
            f"Invalid update version {level} for feature {feature}. It is {known[1]}, and changes "
            "with the release."
        )
    return None


async def describe_quorum(
    backend: Backend, call: Call, request: m.DescribeQuorumRequest
) -> m.DescribeQuorumResponse:
    """This broker as the only voter, the others as observers."""
    if not call.access.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return m.DescribeQuorumResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=()
        )

    brokers = backend.brokers()
    states = {node: _state(node) for node in sorted(brokers)}
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            known = topic.topic_name == _METADATA_TOPIC and partition.partition_index == 0
            partitions.append(
                m.DescribeQuorumResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    leader_id=backend.node_id if known else _UNKNOWN,
                    leader_epoch=0 if known else _UNKNOWN,
                    high_watermark=_UNKNOWN,
                    current_voters=(_state(backend.node_id),) if known else (),
                    observers=tuple(s for n, s in states.items() if known and n != backend.node_id),
                )
            )

        topics.append(
            m.DescribeQuorumResponseTopic(topic_name=topic.topic_name, partitions=tuple(partitions))
        )

    return m.DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=tuple(topics),
        nodes=tuple(
            m.DescribeQuorumResponseNode(
                node_id=broker.node_id,
                listeners=(
                    m.DescribeQuorumResponseListener(
                        name="BROKER", host=broker.host, port=broker.port
                    ),
                ),
            )
            for broker in brokers.values()
            if broker.node_id == backend.node_id
        ),
    )


def _state(node: int) -> m.DescribeQuorumResponseReplica:
    return m.DescribeQuorumResponseReplica(replica_id=node, log_end_offset=_UNKNOWN)
