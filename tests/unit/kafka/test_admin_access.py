"""Admin requests of somebody who may do nothing: refused before anything is looked at."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dovetail.access import Access, Kind, Operation
from dovetail.errors import Forbidden
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers import (
    configs,
    consumer_groups,
    features,
    log_dirs,
    quotas,
    reassignment,
)
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.log.groups.consumer_member import Member
from dovetail.log.groups.consumer_types import ConsumerDescription, ConsumerHeader
from dovetail.log.groups.types import GroupError, GroupId, GroupState, MemberId


class Nothing:
    """May do nothing; remembers what was asked."""

    principal = "mallory"

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, Kind]] = []

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        self.asked.append((operation, kind))
        return False

    def allows_some(self, operation: Operation, kind: Kind) -> bool:
        return self.allows(operation, kind, "")

    def demand(self, operation: Operation, kind: Kind, name: str) -> None:
        self.allows(operation, kind, name)
        raise Forbidden("no", kind=kind.name.lower())


QUOTA = m.AlterClientQuotasRequestEntry(
    entity=(m.AlterClientQuotasRequestEntity(entity_type="user", entity_name="a"),),
    ops=(m.AlterClientQuotasRequestOp(key="producer_byte_rate", value=1.0, remove=False),),
)
CASES: list[tuple[Any, Any, Operation]] = [
    (log_dirs.describe_log_dirs, m.DescribeLogDirsRequest(topics=None), Operation.DESCRIBE),
    (
        reassignment.elect_leaders,
        m.ElectLeadersRequest(election_type=0, topic_partitions=None),
        Operation.ALTER,
    ),
    (
        reassignment.alter_reassignments,
        m.AlterPartitionReassignmentsRequest(topics=()),
        Operation.ALTER,
    ),
    (
        reassignment.list_reassignments,
        m.ListPartitionReassignmentsRequest(),
        Operation.DESCRIBE,
    ),
    (
        quotas.describe_quotas,
        m.DescribeClientQuotasRequest(components=(), strict=False),
        Operation.DESCRIBE_CONFIGS,
    ),
    (
        quotas.alter_quotas,
        m.AlterClientQuotasRequest(entries=(QUOTA,), validate_only=False),
        Operation.ALTER_CONFIGS,
    ),
    (features.update_features, m.UpdateFeaturesRequest(feature_updates=()), Operation.ALTER),
    (features.describe_quorum, m.DescribeQuorumRequest(topics=()), Operation.DESCRIBE),
    (
        configs.list_config_resources,
        m.ListConfigResourcesRequest(),
        Operation.DESCRIBE_CONFIGS,
    ),
]


@pytest.mark.parametrize(
    ("handler", "request_", "right"), CASES, ids=[handler.__name__ for handler, _, _ in CASES]
)
async def test_who_may_nothing_is_told_so(handler: Any, request_: Any, right: Operation) -> None:
    """K13, R4: each wants the right over the cluster that Kafka wants, and asks for it first."""
    nobody = Nothing()
    call = Call(1, "client", "127.0.0.1", cast(Access, nobody))
    answer = await handler(cast(Backend, None), call, request_)  # There is nothing to look at.
    told = answer.error_code if hasattr(answer, "error_code") else answer.entries[0].error_code
    assert told == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert nobody.asked == [(right, Kind.CLUSTER)]


class GroupsAlone(Nothing):
    """May see groups, and of topics those that are named."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.topics = topics

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        return kind is Kind.GROUP or name in self.topics


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        (("read", "named"), ErrorCode.NONE),
        (("read",), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (("named",), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_a_group_does_not_tell_of_topics(topics: tuple[str, ...], code: ErrorCode) -> None:
    """K9, R4: who may see a group and not its topics does not hear their names."""
    member = replace(
        Member(MemberId("m")), names=frozenset({"named"}), assigned=frozenset({("aa", 0)})
    )
    found = ConsumerDescription(
        GroupId("g"), GroupState.STABLE, ConsumerHeader(1, 1, "uniform", 0), (member.kept(),)
    )
    coordinator = SimpleNamespace(refusal=lambda _: GroupError.NONE, described=lambda _: found)
    backend = SimpleNamespace(
        groups=SimpleNamespace(of=lambda _: coordinator),
        log=SimpleNamespace(topics=lambda: [SimpleNamespace(id="aa", name="read")]),
    )
    call = Call(1, "client", "127.0.0.1", cast(Access, GroupsAlone(*topics)))
    request = m.ConsumerGroupDescribeRequest(group_ids=("g",), include_authorized_operations=False)
    answer = await consumer_groups.describe(cast(Backend, backend), call, request)
    assert answer.groups[0].error_code == code
    assert bool(answer.groups[0].members) is (code is ErrorCode.NONE)
