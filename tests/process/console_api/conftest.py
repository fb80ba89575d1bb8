"""Nodes for the tests of the HTTP API: one open to this machine, one with a token."""

from collections.abc import Iterator

import httpx
import pytest
from tests.conftest import RunningNode
from tests.console_kit import TOKEN, WAIT_SECONDS_MAX, Site, fill, fill_outbox


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tests leave what they did not make as they found it."""
    folder = tmp_path_factory.mktemp("console")
    outbox = f"sqlite:///{folder / 'shop.db'}"
    fill_outbox(outbox)
    node = RunningNode(folder / "node", {"outbox_database": outbox})
    node.start()
    try:
        with httpx.Client(base_url=node.http_url, timeout=WAIT_SECONDS_MAX) as client:
            site = Site(node, client)
            fill(site)
            yield site
    finally:
        node.kill()


@pytest.fixture(scope="session")
def signed_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node that asks for a token; its client has none."""
    folder = tmp_path_factory.mktemp("signed")
    node = RunningNode(folder / "node", {"http_token": TOKEN})
    node.start()
    try:
        with httpx.Client(base_url=node.http_url, timeout=WAIT_SECONDS_MAX) as client:
            yield Site(node, client)
    finally:
        node.kill()
