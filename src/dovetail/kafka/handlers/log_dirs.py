"""DescribeLogDirs: the partitions that this broker serves, and their bytes.

Kafka's tools ask each broker for its folders. A broker here has one, and answers for the partitions
that it owns: each counts once, however many storage nodes hold it.
"""

import shutil

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call

_UNKNOWN = -1


async def describe_log_dirs(
    backend: Backend, call: Call, request: m.DescribeLogDirsRequest
) -> m.DescribeLogDirsResponse:
    """Bytes of the batches that are kept."""
    if not call.access.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return m.DescribeLogDirsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=()
        )

    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    sizes: dict[str, dict[int, int]] = {}
    for (name, number), partition in sorted(backend.log.owned.open.items()):
        if wanted is None or (name, number) in wanted:
            sizes.setdefault(name, {})[number] = partition.payload_bytes

    folder = backend.node_settings.get("node.data_dir", "")
    try:
        disk = shutil.disk_usage(folder)
        total, usable = disk.total, disk.free
    except OSError:  # A broker that keeps nothing has no folder.
        total = usable = _UNKNOWN
    result = m.DescribeLogDirsResponseResult(
        error_code=ErrorCode.NONE,
        log_dir=folder,
        topics=tuple(_topic(name, found) for name, found in sizes.items()),
        total_bytes=total,
        usable_bytes=usable,
    )
    return m.DescribeLogDirsResponse(error_code=ErrorCode.NONE, results=(result,))


def _topic(name: str, sizes: dict[int, int]) -> m.DescribeLogDirsResponseTopic:
    return m.DescribeLogDirsResponseTopic(
        name=name,
        partitions=tuple(
            m.DescribeLogDirsResponsePartition(
                partition_index=number, partition_size=size, offset_lag=0, is_future_key=False
            )
            for number, size in sizes.items()
        ),
    )
