"""The conformance suite on a real etcd."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from tests.etcd_server import EtcdCluster
from tests.unit.coordination.conformance import CoordinatorConformance
from tests.unit.coordination.driving import CoordinatorFactory

from dovetail.coordination import Coordinator
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings


class TestEtcd(CoordinatorConformance):
    """Each call of the factory opens a new namespace of one etcd."""

    lease_ttl_ms: ClassVar[int] = 1000
    _numbers: ClassVar[Iterator[int]] = itertools.count()

    @pytest.fixture
    def coordinator_factory(self, etcd: EtcdCluster) -> CoordinatorFactory:
        @asynccontextmanager
        async def open_new() -> AsyncIterator[Coordinator]:
            settings = EtcdSettings(etcd.endpoints, namespace=f"/run/{next(self._numbers)}/")
            async with await EtcdCoordinator.open(settings) as coordinator:
                yield coordinator

        return open_new
