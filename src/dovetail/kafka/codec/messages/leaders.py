"""The new leader of a partition, sent along with "not leader" errors (KIP-951)."""

from typing import Final

from dovetail.kafka.codec.schema import Int32, String, message


@message
class LeaderIdAndEpoch:
    """The leader of a partition; -1 if unknown."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


#: Sent, or rather left out, when there is nothing to say about the leader.
LEADER_UNKNOWN: Final = LeaderIdAndEpoch()


@message
class NodeEndpoint:
    """Address of a broker that is named as a leader."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None
