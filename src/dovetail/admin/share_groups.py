"""Share groups (KIP-932), as `groups.py` shows and moves groups of every kind.

The position of a share group in a partition is the first unfinished record. Its lag is the number
of records that are left to do, as the partition's owner reports it: records that were accepted out
of order do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from msgspec import Struct, structs

from dovetail.admin.kafka import Kafka, Partition
from dovetail.errors import NotFound
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode, error_of


class ShareOutcomes(Struct, frozen=True):
    """Records that were handed out, and what became of them, as their owners have counted.

    A broker counts from when it got the partition. The order is that of the protocol's field.
    """

    acquired: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    #: Their locks ended before anything was said of them.
    expired: int = 0
    #: They were given up because they had been delivered too often.
    exhausted: int = 0
    dead_letters: int = 0


class ShareProgress(Struct, frozen=True):
    """How far a share group is in a partition; None where it is unknown."""

    start: int | None
    lag: int | None
    #: Records that members have; that wait to be delivered again; that wait for dead letters.
    in_flight: int | None
    again: int | None
    dying: int | None
    #: The highest delivery count of what is not done with.
    deliveries: int | None
    outcomes: ShareOutcomes


def sum_of(outcomes: Iterable[ShareOutcomes]) -> ShareOutcomes:
    """All of them together."""
    rows = [structs.astuple(one) for one in outcomes]
    return ShareOutcomes(*(sum(column) for column in zip(*rows, strict=True)))


class ShareGroupFound(Struct, frozen=True):
    """A share group with its members and positions."""

    described: m.ShareGroupDescribeResponseGroup
    partitions: Mapping[Partition, ShareProgress]


def share_group_names(kafka: Kafka) -> list[str]:
    """The names of all share groups. Raises `Unreachable`."""
    with closing(_client(kafka)) as client:
        return client.share_groups()


def find_share_groups(kafka: Kafka, names: Sequence[str]) -> dict[str, ShareGroupFound]:
    """Those of these groups that are share groups."""
    if not names:
        return {}
    found = {}
    with closing(_client(kafka)) as client:
        for name in set(names) & set(client.share_groups()):
            asked = m.ShareGroupDescribeRequest(
                group_ids=(name,), include_authorized_operations=False
            )
            answer = client.ask_coordinator(name, ApiKey.SHARE_GROUP_DESCRIBE, asked)
            described = answer.groups[0]
            if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                continue
            _check(described.error_code, f"describing group {name!r}")
            found[name] = ShareGroupFound(described, _progress(client, name))
    return found


def _progress(client: KafkaClient, name: str) -> dict[Partition, ShareProgress]:
    group = m.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    asked = m.DescribeShareGroupOffsetsRequest(groups=(group,))
    answer = client.ask_coordinator(name, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, asked)
    found = answer.groups[0]
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}
    _check(found.error_code, f"reading the positions of group {name!r}")
    return {
        (topic.topic_name, row.partition_index): ShareProgress(
            start=_known(row.start_offset),
            lag=_known(row.lag),
            in_flight=_known(row.acquired),
            again=_known(row.again),
            dying=_known(row.dying),
            deliveries=_known(row.deliveries),
            # A newer broker may count more than is known here.
            outcomes=ShareOutcomes(*row.counts[: len(ShareOutcomes.__struct_fields__)]),
        )
        for topic in found.topics
        for row in topic.partitions
        if row.error_code == ErrorCode.NONE
    }


def move_share_group(kafka: Kafka, name: str, starts: Mapping[Partition, int]) -> None:
    """Sets where the group begins. Raises `Refused` while it has members, `NotFound`."""
    topics: dict[str, list[m.AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, number), start in starts.items():
        topics.setdefault(topic, []).append(
            m.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start)
        )
    asked = m.AlterShareGroupOffsetsRequest(
        group_id=name,
        topics=tuple(
            m.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=tuple(rows))
            for topic, rows in topics.items()
        ),
    )
    with closing(_client(kafka)) as client:
        answer = client.ask_coordinator(name, ApiKey.ALTER_SHARE_GROUP_OFFSETS, asked)
    _check(answer.error_code, f"moving group {name!r}")
    for topic_answer in answer.responses:
        for row in topic_answer.partitions:
            place = f"{topic_answer.topic_name}-{row.partition_index}"
            _check(row.error_code, f"moving group {name!r} at {place}")


def _client(kafka: Kafka) -> KafkaClient:
    brokers = Brokers.at(kafka.bootstrap, kafka.security)
    return KafkaClient(brokers, client_id=kafka.client_id, timeout_s=kafka.timeout_s)


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _check(code: int, doing: str) -> None:
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise NotFound(f"{doing}: there is no such share group")
    if code != ErrorCode.NONE:
        raise error_of(code, doing)
