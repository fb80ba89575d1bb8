"""R5: an unexpected exception in any piece of background work, in real components, by name.

Each is planted until restarts have not helped: the component says so by the name of the work, in
its health and its metrics; well again, it says that too, and it still does what it is for.
"""

import asyncio
import ctypes
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import create_engine
from tests.background_work import ENDS_WITH, LASTING, Place
from tests.crew_run import run_crew
from tests.database_servers import PostgresServer
from tests.etcd_server import EtcdCluster, running_cluster
from tests.local_nodes import LocalNodes
from tests.outbox_kit import new_topic, read_all
from tests.planting import WAIT_S_MAX, Planted, Planter
from tests.unit.stream.memory_cluster import MemoryCluster

import dovetail.outbox.relay as relays
from dovetail import connect, connect_blocking
from dovetail.clock import SystemClock
from dovetail.console import http_of
from dovetail.coordination import EmbeddedCoordinator
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.coordination.membership import Member, Membership
from dovetail.election import Algorithm, Leadership, MemberName, VoteFile
from dovetail.election.coordination_log import CoordinationSharedLog
from dovetail.election.effects import Persist, Vote
from dovetail.election.fold import Register
from dovetail.election.identifiers import Incarnation
from dovetail.election.member import _Work
from dovetail.errors import StorageOut, Uncertain
from dovetail.kafka.client.brokers import Brokers
from dovetail.node.node import Node
from dovetail.outbox import Producer
from dovetail.outbox.backends import DatabaseBackend, KafkaBackend
from dovetail.outbox.database import open_engine
from dovetail.outbox.relay import Relay, RelayOptions
from dovetail.outbox.schema import create_tables
from dovetail.outbox.worker import Worker
from dovetail.settings import Flag, load_settings
from dovetail.storage import (
    SINGLE,
    Ensembles,
    LedgerStore,
    LocalStorageNode,
    Placement,
    RealDisk,
    StoreSettings,
    Term,
)
from dovetail.storage.placement import Fragment
from dovetail.stream import Event, SharedStream, StreamSettings, Takeover
from dovetail.supervision import FAILING_AFTER, Supervisor
from dovetail.teams.delays import Courier
from dovetail.teams.envelope import Job
from dovetail.teams.graph import Pipeline
from dovetail.teams.master import Master, run_team_masters
from dovetail.teams.reporter import Reporter
from dovetail.teams.team import Team
from dovetail.teams.workers.crew import Crew, Done
from dovetail.timeline.client.message import Message
from dovetail.timeline.running import RunningTimeline
from dovetail.timeline.stores import _sqlite_thread

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

    def __init__(self, node: Node, planter: Planter, folder: Path) -> None:
        self.node = node
        self.folder = folder
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
        asked = admin.create_topics([NewTopic("short-lived", 1)])
        await asyncio.to_thread(asked["short-lived"].result, WAIT_S_MAX)
        asked = admin.delete_topics(["short-lived"])
        await asyncio.to_thread(asked["short-lived"].result, WAIT_S_MAX)

    async def end_a_transaction(self) -> None:
        """Writes in a transaction and commits it, as a client does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        asked = admin.create_topics([NewTopic("written-in-transactions", 1)])
        await asyncio.to_thread(asked["written-in-transactions"].result, WAIT_S_MAX)

        def use() -> None:
            given = {"bootstrap.servers": self.bootstrap, "transactional.id": "planted"}
            producer = KafkaProducer(given)
            producer.init_transactions(WAIT_S_MAX)
            producer.begin_transaction()
            producer.produce("written-in-transactions", b"x")
            producer.commit_transaction(WAIT_S_MAX)

        await asyncio.to_thread(use)

    async def share_a_record(self) -> ShareConsumer:
        """A member of a share group has a record, whose lock will end."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        asked = admin.create_topics([NewTopic("shared", 1)])
        await asyncio.to_thread(asked["shared"].result, WAIT_S_MAX)

        def use() -> ShareConsumer:
            consumer = ShareConsumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": "planted",
                    "share.acknowledgement.mode": "explicit",
                }
            )
            consumer.subscribe(["shared"])
            producer = KafkaProducer({"bootstrap.servers": self.bootstrap})
            while not consumer.poll(0.2):  # The group begins with what comes after it.
                producer.produce("shared", b"x")
                producer.flush(WAIT_S_MAX)
            return consumer

        return await asyncio.to_thread(use)


class Replica:
    """A replica of a shared stream, and what it handled."""

    stream: SharedStream

    def __init__(self, site: Site, topic: str) -> None:
        self.topic = topic
        self.handled: list[Event] = []
        self._producer = KafkaProducer({"bootstrap.servers": site.bootstrap})

    async def handle(self, event: Event, leadership: Leadership) -> None:
        self.handled.append(event)

    async def publish(self) -> None:
        """Publishes an event."""
        self._producer.produce(self.topic, b"event")
        assert await asyncio.to_thread(self._producer.flush, WAIT_S_MAX) == 0


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
        admin = AdminClient({"bootstrap.servers": node.endpoints.kafka})
        asked = admin.create_topics([NewTopic("due", 1, config={"dovetail.due": "true"})])
        await asyncio.to_thread(asked["due"].result, WAIT_S_MAX)
        watching = await stack.enter_async_context(httpx.AsyncClient())
        watch = f"{node.endpoints.http}/v1/live?watch=topics"
        await stack.enter_async_context(watching.stream("GET", watch, timeout=None))
        yield Site(node, planter, folder)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not done():
            await asyncio.sleep(0.01)


_OF_A_DELETION = {"log/topic-work", "log/groups/forget-topic"}
_ALARMS = {"log/adopt", "log/decide", "log/reconsider", "timeline/pump", "timeline/window"}
_ALARMS |= {"web/sweep", "wire/sweep", "election/tick", "wire/deadlines", "log/share/locks"}


async def _plant(
    planter: Planter, name: str, *, start: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Plants until restarts have not helped; returns when that was heard of.

    `start` begins work that is there only while something is done: planted as it starts.
    """
    before = planter.heard[name]
    if name in _ALARMS:
        planter.at_start(name)
        for round_ in range(FAILING_AFTER):
            await planter.ring(name, heard=before + round_ + 1)
    elif start is not None:
        planter.at_start(name)
        await start()
    else:
        for round_ in range(FAILING_AFTER):
            # The last one is a cancellation that nobody asked for.
            swallowed = name == "stream/read"  # It takes that for a source that broke.
            error = None if round_ == 2 and not swallowed else Planted("where it waits")
            await planter.where_it_waits(name, error)
            await planter.until_heard(name, before + round_ + 1)
    await planter.until_heard(name, before + FAILING_AFTER)


@pytest.mark.parametrize("name", _names(Place.NODE))
async def test_a_node_says_which_work_keeps_failing(site: Site, name: str) -> None:
    """R5: by its name, in `/readyz` and the metrics, until it is well again."""
    await _until(lambda: site.node.ready()[0])
    start = site.delete_a_topic if name in _OF_A_DELETION else None
    start = site.end_a_transaction if name == "log/transactions/end" else start
    member = await site.share_a_record() if name == "log/share/locks" else None
    await _plant(site.planter, name, start=start)
    assert site.says(name)
    site.planter.pass_time()
    assert not site.says(name)
    if member is not None:
        await asyncio.to_thread(member.close)


async def test_a_lease_that_nobody_renews_is_replaced(site: Site) -> None:
    """R5: the task that keeps it has failed, so it counts as lost, and the node gets another."""
    membership = site.node._membership
    assert membership is not None
    lease = membership.lease_id
    await site.planter.where_it_waits(f"coordination/lease ({lease})", Planted("where it waits"))
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


# A node on its own


@pytest.mark.parametrize("name", ["coordination/commit", "web/server"])
async def test_what_cannot_be_replaced_makes_the_node_unready(
    name: str, tmp_path: Path, planter: Planter
) -> None:
    """R5: for good, by its name."""
    async with _node(tmp_path) as node:
        before = planter.heard[name]
        port = (node.endpoints.http or "").rpartition(":")[2]
        task = f"web/server (port {port})" if name == "web/server" else name
        await planter.where_it_waits(task, RuntimeError("where it waits"))
        await planter.until_heard(name, before + 1)
        planter.pass_time()
        assert f"background work {task}: ended with RuntimeError: where it waits" in node.ready()[1]
        assert _is_failing(node.registry, name)


async def test_expired_leases_are_looked_for_again(tmp_path: Path, planter: Planter) -> None:
    """R5: coordination/expiry, of a node on its own."""
    async with _node(tmp_path) as node:
        await _plant(planter, "coordination/expiry")
        assert any("coordination/expiry" in reason for reason in node.ready()[1])
        planter.pass_time()
        assert node.ready() == (True, [])


async def test_threads_that_write_answer_whoever_waits(
    tmp_path: Path, planter: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: storage/commit, timeline/write: nobody waits for ever, and the node says so."""

    def broken(*_: object) -> Any:
        raise Planted("in the thread")

    async with _node(tmp_path) as node, connect(node.endpoints.kafka) as client:
        timeline = client.timeline("planted")
        await timeline.create()
        served = node._timelines.timelines["planted"]  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            patch.setattr(_sqlite_thread, "_together", broken)
            with pytest.raises(Uncertain, match="Planted"):
                await served._store.trim(dead_max=1, batches_before_ms=0)
        with pytest.raises(StorageOut, match="takes no commands: a commit failed: Planted"):
            await served._store.trim(dead_max=1, batches_before_ms=0)

        monkeypatch.setattr(LedgerStore, "commit", broken)
        limits = {"bootstrap.servers": node.endpoints.kafka, "message.timeout.ms": 1_000}
        producer = KafkaProducer(limits)
        producer.produce("planted", b"never stored")
        await asyncio.to_thread(producer.poll, 0)
        await _until(lambda: any("storage is out" in reason for reason in node.ready()[1]))


async def test_a_defect_beside_a_lease_stops_no_timeline(
    tmp_path: Path, planter: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: timeline/store: what was leased is pushed, and so is all that is due after it."""
    planter.in_call(monkeypatch, RunningTimeline, "_note_leased", name="timeline/store", times=1)
    async with _node(tmp_path) as node, connect(node.endpoints.kafka) as client:
        await client.timeline("planted").create()
        bodies: list[bytes] = []

        @client.consumer("planted", lease="2s")
        async def handle(message: Message) -> None:
            bodies.append(message.body)

        await client.timeline("planted").schedule(b"first", delay="0s")
        await planter.until_heard("timeline/store", 1)
        await client.timeline("planted").schedule(b"second", delay="0s")
        await _until(lambda: set(bodies) == {b"first", b"second"})


# Clients


@pytest.mark.parametrize("name", _names(Place.CLIENT))
async def test_a_client_says_which_work_keeps_failing(site: Site, name: str) -> None:
    """R5: in `health`; its consumer goes on."""
    if name == "client/loop":
        return  # It has a test of its own: the loop of the client without asyncio.
    planter = site.planter
    async with connect(site.bootstrap) as client:
        handled = asyncio.Event()

        # What is pushed as the answer to a request that has failed comes again after its lease.
        @client.consumer("planted", lease="2s")
        async def handle(message: object) -> None:
            handled.set()

        if name == "wire/connect":
            planter.at_start(name)
        await client.timelines()
        await _until(lambda: client.consumers[0].signals is not None)
        if name != "wire/connect":
            await _plant(planter, name)
        healthy, facts = client.health()
        assert not healthy
        assert any(problem.startswith(name) for problem in facts["problems"]), facts

        planter.pass_time()
        assert client.health()[0]
        await client.timeline("planted").schedule(b"call Ada", delay="0s")
        async with asyncio.timeout(WAIT_S_MAX):
            await handled.wait()


async def test_the_loop_of_a_client_without_asyncio_runs_again(site: Site) -> None:
    """R5: client/loop: calls are answered after it, and `health` says so while it keeps failing."""

    def use() -> None:
        planter = site.planter
        with connect_blocking(site.bootstrap) as client:
            before = planter.heard["client/loop"]
            for round_ in range(FAILING_AFTER):
                planter.in_thread("client/loop")
                client._loop.call_soon_threadsafe(lambda: None)
                planter.wait_heard("client/loop", before + round_ + 1)
                assert ("planted", "ready") in client.timelines()
            assert client.health()[1]["problems"][0].startswith("client/loop")
            planter.pass_time()
            assert client.health()[0]

    await asyncio.to_thread(use)


# The outbox


async def test_a_relay_says_which_thread_keeps_failing(
    site: Site, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: outbox/worker, outbox/housekeeping, outbox/listen: in `health` and the metrics."""
    monkeypatch.setattr(relays, "HOUSEKEEPING_S", 0.05)
    called = {
        "outbox/worker": (Worker, "work_once"),
        "outbox/housekeeping": (relays, "read_status"),
        "outbox/listen": (psycopg.Connection, "notifies"),
    }
    assert called.keys() == set(_names(Place.RELAY))
    planter, url = site.planter, postgres_server.create_database().url
    topic = await asyncio.to_thread(new_topic, site.bootstrap)

    def use() -> None:
        engine = create_engine(url)
        create_tables(engine)
        brokers = Brokers.at(site.bootstrap)
        with Relay(open_engine(url), brokers, RelayOptions(workers=1, idle_ms=20)) as relay:
            for name, (owner, attribute) in called.items():
                before = planter.heard[name]
                planter.in_call(monkeypatch, owner, attribute, name=name, times=FAILING_AFTER)
                for woken in relay._woken:
                    woken.set()
                planter.wait_heard(name, before + FAILING_AFTER)
                healthy, facts = relay.health()
                assert not healthy
                assert any(problem.startswith(name) for problem in facts["problems"])
                assert _is_failing(relay.metrics.registry, name)
                planter.pass_time()
                assert relay.health() == (True, {"status": "ok", "problems": []})

            with engine.begin() as connection:
                Producer(topic, backend=DatabaseBackend()).publish("after all", on=connection)
            deadline = time.monotonic() + WAIT_S_MAX
            while not (found := read_all(site.bootstrap, topic)):
                assert time.monotonic() < deadline
            assert [record.value for record in found] == [b"after all"]
        engine.dispose()

    await asyncio.to_thread(use)


def _break_thread(planter: Planter, name: str) -> None:
    before = planter.heard[name]
    for round_ in range(FAILING_AFTER):
        planter.in_thread(name)
        planter.wait_heard(name, before + round_ + 1)


async def test_answers_to_a_producer_are_taken_again(site: Site) -> None:
    """R5: outbox/answers: what is published after it is acknowledged."""
    topic = await asyncio.to_thread(new_topic, site.bootstrap)

    def use() -> None:
        backend = KafkaBackend({"bootstrap.servers": site.bootstrap}, wait=False)
        producer = Producer(topic, backend=backend)
        producer.publish("before")
        _break_thread(site.planter, "outbox/answers")
        producer.publish("after")
        backend.close()

    await asyncio.to_thread(use)


# Shared streams


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(
    site: Site, etcd: EtcdCluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replica]:
    """A replica that leads, on the node's topic and with etcd as its coordination service."""
    made = Replica(site, await asyncio.to_thread(new_topic, site.bootstrap, partitions=1))
    folder = tmp_path_factory.mktemp("replica")
    settings = StreamSettings(
        coordination_stream_id="planted",
        endpoint_host_and_port="127.0.0.1:0",
        algorithm=Algorithm.COORDINATOR,
        shared_secret="correct-horse-battery-staple",
        takeover=Takeover.SKIP,
        timeout_ms=2_000,
        report_interval_ms=100,
        vote_path=folder / "vote",
    )
    etcd_settings = EtcdSettings(endpoints=tuple(etcd.endpoints))
    async with await EtcdCoordinator.open(etcd_settings) as coordinator:
        made.stream = SharedStream.on_kafka(
            site.bootstrap, made.topic, made.handle, settings, coordinator=coordinator
        )
        async with made.stream:
            await _until(lambda: made.stream.health()[0])
            yield made


@pytest.mark.parametrize("name", _names(Place.REPLICA))
async def test_a_replica_says_which_work_keeps_failing(
    replica: Replica, planter: Planter, name: str
) -> None:
    """R5: in `health` and the metrics; it handles events after it."""
    stream = replica.stream
    await _until(lambda: stream.health()[0])
    if name == "election/poll":
        await asyncio.to_thread(_break_thread, planter, name)
    elif name in ("stream/handle", "stream/report"):
        await _plant(planter, name, start=replica.publish)
    elif name == "stream/find-end":
        before = planter.heard[name]
        planter.at_start(name)
        await planter.where_it_waits("stream/lead", Planted("to lead again"))
        await planter.until_heard(name, before + FAILING_AFTER)
    else:
        await _plant(planter, name)

    healthy, facts = stream.health()
    assert not healthy
    assert any(problem.startswith(name) for problem in facts["problems"]), facts
    assert _is_failing(stream.metrics.registry, name)
    planter.pass_time()
    await _until(lambda: stream.health()[0])

    # One that leads anew skips what was published before it found the end.
    handled = len(replica.handled)
    async with asyncio.timeout(WAIT_S_MAX):
        while len(replica.handled) == handled:
            await replica.publish()
            await asyncio.sleep(0.05)


async def test_a_member_that_cannot_do_what_it_decided_has_failed(
    tmp_path: Path, planter: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: election/effects: whatever class the exception has; the stream's health says so."""

    def broken(*_: object) -> None:
        raise Planted("in the thread that writes the vote")

    async with MemoryCluster(tmp_path) as cluster:
        stream = await cluster.start_stream("a")
        await _until(lambda: stream.health()[0])
        monkeypatch.setattr(VoteFile, "write", broken)
        stream.member._outbox.put_nowait(_Work([Persist(Vote())], None))
        await _until(lambda: not stream.health()[0])
        assert "Planted" in stream.health()[1]["failure"]


async def test_a_shared_log_in_the_coordination_service_is_followed_again(
    tmp_path: Path, planter: Planter
) -> None:
    """R5: election/shared-log: appends get their verdict after it."""
    supervisor = Supervisor()
    path = tmp_path / "coordination.sqlite"
    async with await EmbeddedCoordinator.open(path, clock=SystemClock()) as coordinator:
        log = CoordinationSharedLog(coordinator, name="s", environment="e", timeout_ms=5_000)
        with supervisor.supervising():
            await log.open(lambda entry: None)
        await _plant(planter, "election/shared-log")
        assert supervisor.failing() == {"election/shared-log"}
        await log.append(Register(MemberName("a"), Incarnation("1")))
        await log.close()


# Teams


async def test_a_driver_says_which_thread_keeps_failing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: teams/delays, teams/reporter, teams/keep-warm, teams/team-master."""
    planter, supervisor = site.planter, Supervisor()
    pipeline = Pipeline("planted", Team("t", _same))

    def use() -> None:
        with supervisor.supervising():
            for owner, attribute, name in (
                (Courier, "_carry", "teams/delays"),
                (Reporter, "look", "teams/reporter"),
            ):
                planter.in_call(monkeypatch, owner, attribute, name=name, times=FAILING_AFTER)
            courier = Courier("planted", Brokers.at(site.bootstrap))
            courier.start()
            with Reporter(pipeline, bootstrap=site.bootstrap) as reporter:
                planter.wait_heard("teams/reporter", FAILING_AFTER)
                planter.wait_heard("teams/delays", FAILING_AFTER)
                healthy, facts = reporter.health()
                assert not healthy
                named = {problem.partition(":")[0] for problem in facts["problems"]}
                assert named == {"teams/reporter", "teams/delays"}
                planter.pass_time()
                assert reporter.health() == (True, {"status": "ok", "problems": []})
            courier.stop()

    await asyncio.to_thread(use)

    async with MemoryCluster(site.folder) as cluster:
        member = cluster.member("a")
        master = Master(pipeline, None, member, bootstrap=site.bootstrap, checkpoint="")  # type: ignore[arg-type]
        with supervisor.supervising():
            elected = asyncio.ensure_future(master._elected(member))
            await asyncio.sleep(0)
            await _plant(planter, "teams/keep-warm")
        elected.cancel()
        await asyncio.wait([elected])

        def master_of(_team: str) -> Master:
            return Master(pipeline, None, cluster.member("b"), bootstrap="nowhere:1", checkpoint="")  # type: ignore[arg-type]

        with supervisor.supervising():
            masters = asyncio.ensure_future(run_team_masters(pipeline.teams, master_of))
            await asyncio.sleep(0)
            await _plant(planter, "teams/team-master")
        masters.cancel()
        await asyncio.wait([masters])
    assert {"teams/keep-warm", "teams/team-master"} <= supervisor.failing()


def _same(job: str) -> str:
    return job


def _sabotage(job: str) -> str:
    """Has its thread fail when it waits for the next job."""
    thread = threading.get_ident()

    def plant() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(SystemExit)
        )

    if job == "plant":
        threading.Timer(0.2, plant).start()
    return job


async def test_jobs_of_a_thread_that_failed_are_done() -> None:
    """R5: teams/work: the job that it took runs out of time, and is tried again."""

    def use() -> None:
        team = Team("t", _sabotage, concurrency=2, timeout="1s", attempts=3, backoff="5ms")
        with Crew(Pipeline("p", team).stages()[0]) as crew:
            run_crew(crew, [Job(b"0", b'"plant"')])
            time.sleep(0.5)
            ended = run_crew(crew, [Job(str(n).encode(), b'"a"') for n in range(1, 5)])
        assert [one.result for one in ended if isinstance(one, Done)] == [b'"a"'] * 4

    await asyncio.to_thread(use)


# Ledgers


async def test_a_node_of_a_ledger_is_replaced_after_failures(
    tmp_path: Path, planter: Planter
) -> None:
    """R5: storage/replace-nodes: the append that waits for another node is confirmed after it."""
    supervisor, done = Supervisor(), asyncio.get_running_loop().create_future()
    nodes = {}
    for number in (1, 2):
        disk = RealDisk(tmp_path / str(number))
        store = LedgerStore(disk, StoreSettings(disk_free_bytes_min=0), random.Random(number))
        nodes[number] = LocalStorageNode(store)
    await nodes[1].close()

    async def change(_: Placement) -> None:
        pass

    with supervisor.supervising():
        placed = Placement(1, SINGLE, (Fragment(0, (1,)),))
        writer = Ensembles(LocalNodes(nodes)).writer(placed, term=Term(1), change=change)
        planter.at_start("storage/replace-nodes")
        writer.append(b"entry", done.set_result)
        assert await asyncio.wait_for(done, WAIT_S_MAX) is None
    assert supervisor.failing() == {"storage/replace-nodes"}
    await nodes[1].close()
