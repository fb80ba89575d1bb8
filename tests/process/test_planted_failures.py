"""R5: an unexpected exception in any piece of background work, in real components, by name.

Each is planted until restarts have not helped: the component says so by the name of the work, in
its health and its metrics; well again, it says that too, and it still does what it is for.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import CollectorRegistry, generate_latest
from tests.background_work import ENDS_WITH, LASTING, Place
from tests.database_servers import PostgresServer
from tests.etcd_server import EtcdCluster, running_cluster
from tests.planting import WAIT_S_MAX, Planted, Planter

from dovetail import connect
from dovetail.clock import SystemClock
from dovetail.console import http_of
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.coordination.membership import Member, Membership
from dovetail.node.node import Node
from dovetail.settings import Flag, load_settings
from dovetail.supervision import FAILING_AFTER

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def planter() -> Iterator[Planter]:
    with pytest.MonkeyPatch.context() as patch:
        yield Planter(patch)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def _node(folder: Path, **given: object) -> Node:
    given = {"node.data_dir": folder, "kafka.port": 0, "http.port": 0, **given}
    flags = [Flag(name, value, name) for name, value in given.items()]
    return Node(load_settings(flags=flags, environment={}, folder=folder), http=http_of)


def _names(*places: Place) -> list[str]:
    return [name for name, place in LASTING.items() if place in places and name not in ENDS_WITH]


class Site:
    """A node of a cluster in this process, and a second member that is registered and no more."""

    def __init__(self, node: Node, planter: Planter) -> None:
        self.node = node
        self.planter = planter
        self.bootstrap = node.endpoints.kafka

    def says(self, name: str) -> bool:
        """Whether `/readyz` and the metrics name the work."""
        ready, reasons = self.node.ready()
        named = any(reason.startswith(f"background work {name}") for reason in reasons)
        assert named == (not ready and named)
        assert named == _is_failing(self.node.registry, name)
        return named

    async def delete_a_topic(self) -> None:
        """Creates a topic and deletes it, as a client does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for asked in (
            admin.create_topics([NewTopic("short-lived", 1)]),
            admin.delete_topics(["short-lived"]),
        ):
            await asyncio.to_thread(asked["short-lived"].result, WAIT_S_MAX)


def _is_failing(registry: CollectorRegistry, name: str) -> bool:
    line = f'dovetail_background_failing{{work="{name}"}} 1.0'
    return line in generate_latest(registry).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    tmp_path_factory: pytest.TempPathFactory,
    etcd: EtcdCluster,
    postgres_server: PostgresServer,
    planter: Planter,
) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("node")
    settings = {
        "coordination.kind": "etcd",
        "coordination.endpoints": etcd.endpoints[0],
        "timeline.store": "postgres",
        "timeline.dsn": postgres_server.create_database().dsn,
    }
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(_node(folder, **settings))
        coordinator = await EtcdCoordinator.open(EtcdSettings(endpoints=tuple(etcd.endpoints)))
        stack.push_async_callback(coordinator.close)
        other = Membership(coordinator, node_id=77, clock=SystemClock(), ttl_ms=10_000)
        await other.start()
        stack.push_async_callback(other.stop)
        host, _, port = node.endpoints.kafka.rpartition(":")
        await other.register(lambda: Member(77, host, int(port), roles=("overseer",), version="0"))

        client = await stack.enter_async_context(connect(node.endpoints.kafka))
        await client.timeline("planted").create()
        watching = await stack.enter_async_context(httpx.AsyncClient())
        watch = f"{node.endpoints.http}/v1/live?watch=topics"
        await stack.enter_async_context(watching.stream("GET", watch, timeout=None))
        yield Site(node, planter)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not done():
            await asyncio.sleep(0.01)


#: Work that is there only while something is done: planted as it starts.
_STARTED_BY = {
    "log/topic-work": "delete a topic",
    "log/groups/forget-topic": "delete a topic",
}
_ALARMS = {"log/adopt", "log/decide", "log/reconsider", "timeline/pump", "timeline/window"}
_ALARMS |= {"wire/sweep", "election/tick", "wire/deadlines"}


async def _plant(planter: Planter, name: str, *, start: Callable[[], Awaitable[object]]) -> None:
    """Plants until restarts have not helped; returns when that was heard of."""
    before = planter.heard[name]
    if name in _ALARMS:
        planter.at_start(name)
        planter.ring(name)
    elif name in _STARTED_BY:
        planter.at_start(name)
        await start()
    else:
        for round_ in range(FAILING_AFTER):
            # The last one is a cancellation that nobody asked for.
            error = Planted("where it waits") if round_ < FAILING_AFTER - 1 else None
            await planter.where_it_waits(name, error)
            await planter.until_heard(name, before + round_ + 1)
    await planter.until_heard(name, before + FAILING_AFTER)


@pytest.mark.parametrize("name", _names(Place.NODE))
async def test_a_node_says_which_work_keeps_failing(site: Site, name: str) -> None:
    """R5: by its name, in `/readyz` and the metrics, until it is well again."""
    await _until(lambda: site.node.ready()[0])
    await _plant(site.planter, name, start=site.delete_a_topic)
    assert site.says(name)
    site.planter.pass_time()
    assert not site.says(name)


async def test_a_lease_that_nobody_renews_is_replaced(site: Site) -> None:
    """R5: the task that keeps it has failed, so it counts as lost, and the node gets another."""
    membership = site.node._membership
    assert membership is not None
    lease = membership.lease_id
    await site.planter.where_it_waits("coordination/lease", Planted("where it waits"))
    await site.planter.until_heard("coordination/lease", 1)
    await _until(lambda: membership.holds_lease() and membership.lease_id != lease)


async def test_the_node_serves_after_all_that(site: Site) -> None:
    """R5: what was started again does what it did before."""
    await _until(lambda: site.node.ready()[0])
    await site.delete_a_topic()
    async with connect(site.bootstrap) as client:
        handled = asyncio.Event()
        timeline = client.timeline("planted")

        @client.consumer("planted")
        async def handle(message: object) -> None:
            handled.set()

        await timeline.schedule(b"call Ada", delay="0s")
        async with asyncio.timeout(WAIT_S_MAX):
            await handled.wait()
        assert client.health() == (
            True,
            {"status": "ok", "consumers_ended": {}, "problems": []},
        )
