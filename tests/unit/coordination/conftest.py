"""What the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.etcd_server import EtcdCluster, running_cluster

# Lets a failed assertion in the conformance suite show its values.
pytest.register_assert_rewrite(
    "tests.unit.coordination.conformance", "tests.unit.coordination.conformance_model"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a coordination file can be made."""
    return tmp_path / "coordination.db"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One etcd for the tests of a module; it keeps running, and each test takes a namespace."""
    with running_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def etcd_alone(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One etcd for one test, which may do to it what it likes."""
    with running_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def etcd_three(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members for one test."""
    with running_cluster(tmp_path, size=3) as cluster:
        yield cluster
