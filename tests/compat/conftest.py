"""Foreign clients against a running node.

By default the suite starts a node of its own. With COMPAT_BOOTSTRAP=host:port it uses a
server that is already running, which is how the suite itself is checked: every scenario is green
on Apache Kafka (with automatic creation of topics off), so what Kafka does is what a node must do.
Tests that must set, stop or start the node skip then.

The tests that lose answers need a server that advertises the address of the proxy. For a running
server COMPAT_PROXIED=host:port,proxy_port names a listener of it and the port on 127.0.0.1
that this listener advertises.
"""

import gc
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compat import jvm
from tests.compat.drivers import registry
from tests.compat.drivers.base import Driver
from tests.compat.proxy import Proxy
from tests.compat.server import Connect, Node, Proxied, TopicMaker, new_topic

#: Of the foreign clients about themselves; not ours to fix. kafka-python 3.0.12 forgets a socket if
#: it is closed while it connects.
_THEIR_WARNINGS = (
    "ignore:(read|open)_text is deprecated",
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Here alone those warnings are passed over."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for warning in _THEIR_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="module", autouse=True)
def _warnings_stay_here() -> Iterator[None]:
    """What a client forgot is found here, and not in a test of something else."""
    yield
    gc.collect()


def external() -> str | None:
    return os.environ.get("COMPAT_BOOTSTRAP")


@pytest.fixture
def node_only() -> None:
    """For what holds on a Dovetail node but not, or not provably, on another server."""
    if external():
        pytest.skip("needs a node of its own, not COMPAT_BOOTSTRAP")


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the server under test."""
    address = external()
    if address:
        return address
    node: Node = request.getfixturevalue("node")
    return node.bootstrap


@pytest.fixture(scope="module")
def connect(bootstrap: str) -> Iterator[Connect]:
    """Driver of a client by name, made once per module."""
    made: dict[str, Driver] = {}

    def driver_of(name: str) -> Driver:
        if name not in made:
            made[name] = registry.connect(name, bootstrap)
        return made[name]

    yield driver_of
    for driver in made.values():
        driver.close()


@pytest.fixture
def driver(request: pytest.FixtureRequest, connect: Connect) -> Driver:
    """The client that `registry.clients` chose."""
    return connect(request.param)


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Names for topics and groups that nobody used before."""
    return lambda: f"compat-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic_maker(connect: Connect) -> TopicMaker:
    def make(partitions: int = 1, **config: str) -> str:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        return new_topic(connect("confluent"), partitions, settings)

    return make


@pytest.fixture
def strict_bootstrap(request: pytest.FixtureRequest) -> str:
    """A server that does not create topics by itself."""
    address = external()
    if address:
        return address
    node: Node = request.getfixturevalue("node_factory")(log_topic_auto_create="false")
    return node.bootstrap


@pytest.fixture
def proxied(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    """A server whose clients all come through a proxy."""
    if external():
        setting = os.environ.get("COMPAT_PROXIED")
        if not setting:
            pytest.skip("needs COMPAT_PROXIED beside COMPAT_BOOTSTRAP")
        direct, port = setting.split(",")
        proxy, node = Proxy(int(port)), None
    else:
        proxy = Proxy()
        make: Callable[..., Any] = request.getfixturevalue("node_factory")
        node = make(kafka_advertised_host="127.0.0.1", kafka_advertised_port=str(proxy.port))
        direct = node.bootstrap
    proxy.forward_to(direct)
    yield Proxied(proxy, direct, node)
    proxy.close()


@pytest.fixture(scope="session")
def strangers() -> Path:
    """Kafka Streams, Connect, MirrorMaker and a real Kafka, with the applications of this suite."""
    return jvm.build(Path(__file__).parent / "strangers")


@pytest.fixture
def now_ms() -> int:
    return int(time.time() * 1000)
