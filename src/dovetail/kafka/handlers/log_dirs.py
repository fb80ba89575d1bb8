"""DescribeLogDirs: the partitions that this broker serves, their bytes and their compaction.

Kafka's tools ask each broker for its folders. Our broker reports one folder, with the partitions
that it owns: each counts once, however many storage nodes hold it.
"""

import shutil
from dataclasses import replace

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.log.partition import Partition

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
    found: dict[str, list[m.DescribeLogDirsResponsePartition]] = {}
    for (name, number), partition in sorted(backend.log.owned.open.items()):
        if wanted is None or (name, number) in wanted:
            found.setdefault(name, []).append(_partition(backend, number, partition))

    folder = backend.node_settings.get("node.data_dir", "")
    try:
        disk = shutil.disk_usage(folder)
        total, usable = disk.total, disk.free
    except OSError:  # A broker that keeps nothing has no folder.
        total = usable = _UNKNOWN
    result = m.DescribeLogDirsResponseResult(
        error_code=ErrorCode.NONE,
        log_dir=folder,
        topics=tuple(
            m.DescribeLogDirsResponseTopic(name=name, partitions=tuple(rows))
            for name, rows in found.items()
        ),
        total_bytes=total,
        usable_bytes=usable,
    )
    return m.DescribeLogDirsResponse(error_code=ErrorCode.NONE, results=(result,))


def _partition(
    backend: Backend, number: int, partition: Partition
) -> m.DescribeLogDirsResponsePartition:
    row = m.DescribeLogDirsResponsePartition(
        partition_index=number,
        partition_size=partition.payload_bytes,
        offset_lag=0,
        is_future_key=False,
    )
    state = backend.compaction.partitions.get(partition.name)
    if state is None:
        return row
    survey, last = state.survey, state.last
    return replace(
        row,
        cleaned_to=survey.first_dirty,
        clean_bytes=survey.clean_bytes,
        dirty_bytes=survey.dirty_bytes,
        compacted_ms=_UNKNOWN if last is None else last.ended_ms,
        compacted_bytes_per_second=_UNKNOWN if last is None else last.bytes_per_second,
    )
