"""The three shared logs, held to one conformance suite; and what each does beyond it."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory, RunningNode
from tests.etcd_server import EtcdCluster, running_cluster
from tests.unit.election.shared_log_conformance import (
    Make,
    Opened,
    SharedLogConformance,
    claim,
    register,
    report,
)

from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator, EmbeddedCoordinator
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.election import (
    CoordinationSharedLog,
    KafkaSharedLog,
    MemberName,
    MemoryLog,
    MemorySharedLog,
    SharedLog,
)
from dovetail.election.shared_log import Signing
from dovetail.errors import InvalidSetting, Unavailable


@contextlib.asynccontextmanager
async def opened_by(make_log: Callable[[], SharedLog]) -> AsyncIterator[Make]:
    """Opens logs, and closes them at the end."""
    logs: list[SharedLog] = []

    async def make() -> Opened:
        opened = Opened(make_log())
        logs.append(opened.log)
        await opened.log.open(opened.on_entry)
        return opened

    try:
        yield make
    finally:
        for log in logs:
            await log.close()


def kafka_log(
    node: RunningNode, topic: str, environment: str = "test", *, timeout_ms: int = 5_000
) -> KafkaSharedLog:
    return KafkaSharedLog(
        node.bootstrap,
        topic=topic,
        environment=environment,
        timeout_ms=timeout_ms,
        signing=Signing("0123456789abcdef"),
    )


class TestMemory(SharedLogConformance):
    """In memory."""

    @pytest.fixture
    async def make(self) -> AsyncIterator[Make]:
        log = MemoryLog()
        async with opened_by(lambda: MemorySharedLog(log)) as make:
            yield make


class TestKafka(SharedLogConformance):
    """A topic of a real node."""

    @pytest.fixture
    async def make(self, node: RunningNode) -> AsyncIterator[Make]:
        topic = f"shared-{uuid.uuid4().hex}"
        async with opened_by(lambda: kafka_log(node, topic)) as make:
            yield make


class _OnCoordination(SharedLogConformance):
    @pytest.fixture
    async def make(self, coordinator: Coordinator) -> AsyncIterator[Make]:
        name = uuid.uuid4().hex

        def log() -> CoordinationSharedLog:
            return CoordinationSharedLog(
                coordinator, name=name, environment="test", timeout_ms=5_000
            )

        async with opened_by(log) as make:
            yield make


class TestEmbedded(_OnCoordination):
    """Keys of the embedded coordination service."""

    @pytest.fixture
    async def coordinator(self, tmp_path: Path) -> AsyncIterator[Coordinator]:
        service = await EmbeddedCoordinator.open(tmp_path / "coordination.db", clock=SystemClock())
        try:
            yield service
        finally:
            await service.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


class TestEtcd(_OnCoordination):
    """Keys of a real etcd."""

    @pytest.fixture
    async def coordinator(self, etcd: EtcdCluster) -> AsyncIterator[Coordinator]:
        async with await EtcdCoordinator.open(EtcdSettings(endpoints=etcd.endpoints)) as service:
            yield service


# --- the topic, beyond the suite ------------------------------------------------------------------


async def test_environments_share_a_topic_and_nothing_else(node: RunningNode) -> None:
    """S6, S10: terms, members and positions are apart, also when one of them trims."""
    topic = f"shared-{uuid.uuid4().hex}"
    async with (
        opened_by(lambda: kafka_log(node, topic, "test")) as make_test,
        opened_by(lambda: kafka_log(node, topic, "prod")) as make_prod,
    ):
        test, prod = await make_test(), await make_prod()
        await test.log.append(claim(7, "a"))
        await prod.log.append(claim(1, "p"))
        await prod.log.append(report(1, "p", 1, 5))
        await test.log.trim()
        later = await make_prod()
        assert (later.state.term, later.state.leader, later.state.position) == (1, "p", {0: 5})
        await prod.log.append(report(1, "p", 2, 6))
        await prod.log.trim()
        again = await make_test()
        assert (again.state.term, again.state.leader) == (7, "a")


async def test_a_topic_with_several_partitions_is_refused(node: RunningNode) -> None:
    """S6: there would be no one order."""
    topic = f"shared-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    with pytest.raises(InvalidSetting, match="2 partitions"):
        await kafka_log(node, topic).open(lambda _: None)


async def test_the_shared_log_outlives_its_broker(node_factory: NodeFactory) -> None:
    """S6, S9: a node is killed and comes back; reading and writing go on, nothing is lost."""
    node = node_factory()
    async with opened_by(lambda: kafka_log(node, "shared", timeout_ms=1_500)) as make:
        first, second = await make(), await make()
        await first.log.append(claim(1, "a"))
        await first.log.append(report(1, "a", 1, 10))
        node.kill()
        with pytest.raises(Exception, match="shared log"):
            await first.log.append(report(1, "a", 2, 11))
        node.start()
        await second.log.append(register("b"))
        await first.until(lambda state: state.heard_of(MemberName("b")) is not None)
        await first.log.append(report(1, "a", 3, 12))
        await second.until(lambda state: state.position == {0: 12})
        later = await make()
        assert later.state.position == {0: 12}


async def test_without_a_broker_opening_fails_clearly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S6: start fails, with the address in the message."""
    monkeypatch.setattr("dovetail.election.kafka_log.OPEN_S_MAX", 0.5)
    log = KafkaSharedLog("127.0.0.1:1", topic="shared", environment="test", timeout_ms=500)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await log.open(lambda _: None)
