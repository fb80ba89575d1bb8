"""DescribeCluster: brokers and controller, for admin clients."""

from typing import Annotated

from dovetail.kafka.codec.messages.access import AUTHORIZED_OPERATIONS_ABSENT
from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, String, Wire, message


@message
class DescribeClusterRequest:
    """About the cluster; endpoint type 1 is brokers, 2 controllers."""

    include_cluster_authorized_operations: Bool
    endpoint_type: Annotated[Int8, Wire(since=1)] = 1
    include_fenced_brokers: Annotated[Bool, Wire(since=2)] = False


@message
class DescribeClusterResponseBroker:
    """A broker and its advertised address."""

    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Annotated[Bool, Wire(since=2)] = False


@message
class DescribeClusterResponse:
    """The cluster."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Wire(since=1)] = 1
    cluster_id: String
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterResponseBroker, ...]
    cluster_authorized_operations: Int32 = AUTHORIZED_OPERATIONS_ABSENT
