"""The conformance suite on a real PostgreSQL, and what belongs to a server alone."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.database_servers import PostgresServer, running_postgres
from tests.unit.timeline.store_conformance import (
    NOW_MS,
    StoreConformance,
    ask,
    message,
    put,
    take,
)

from dovetail.errors import DovetailError, InvalidSetting, Unavailable
from dovetail.timeline.message import TimelineId
from dovetail.timeline.postgres_store import PostgresStores
from dovetail.timeline.store import Stores


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database().dsn


class TestPostgres(StoreConformance):
    """One database for the suite."""

    @pytest.fixture
    async def stores(self, dsn: str) -> AsyncIterator[Stores]:
        stores = await PostgresStores.connect(dsn)
        for number in await stores.existing():
            await stores.drop(number)
        yield stores
        await stores.close()


async def test_carriers_that_start_together_do_not_trip(dsn: str) -> None:
    """B3: schema and tables are made by whoever comes, at once and again."""
    together = [PostgresStores.connect(dsn, schema="together") for _ in range(5)]
    carriers = await asyncio.gather(*together)
    await asyncio.gather(*(carrier.provision(TimelineId(1)) for carrier in carriers))
    stores = [await carrier.open(TimelineId(1)) for carrier in carriers]
    await put(stores[0], *[message() for _ in range(100)])
    leases = [take(store, ask(f"c{at}", limit=40)) for at, store in enumerate(stores)]
    taken = [leased.id for part in await asyncio.gather(*leases) for leased in part]
    assert len(taken) == len(set(taken)) == 100
    for carrier in carriers:
        await carrier.close()


async def test_a_bad_address_says_so() -> None:
    """B18: nobody listens, or the schema has no name."""
    with pytest.raises(Unavailable, match="no connection to PostgreSQL"):
        await PostgresStores.connect("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(InvalidSetting, match="no name for a schema"):
        await PostgresStores.connect("postgresql://x@127.0.0.1:1/x", schema='a"; drop')


async def test_a_server_that_dies_is_an_error_and_works_again_later() -> None:
    """B16, B20: commands fail while it is gone, and what was committed is there afterwards."""
    with running_postgres() as server:
        stores = await PostgresStores.connect(server.create_database().dsn)
        await stores.provision(TimelineId(1))
        store = await stores.open(TimelineId(1))
        await put(store, message())
        server.kill()
        with pytest.raises(DovetailError) as caught:
            await put(store, message(NOW_MS + 1))
        assert caught.value.retriable
        server.start()
        async with asyncio.timeout(30):
            while True:
                try:
                    taken = await take(store)
                    break
                except DovetailError as error:
                    assert error.retriable
        assert len(taken) == 1
        await stores.close()
