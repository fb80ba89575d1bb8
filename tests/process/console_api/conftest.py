"""Nodes for the tests of the HTTP API: one open to this machine, one with a token."""

from collections.abc import Iterator

import httpx
import pytest
from tests.conftest import running_node
from tests.console_kit import TOKEN, WAIT_SECONDS_MAX, Site, fill, fill_outbox
from tests.fake_registry import fake_registry


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tests leave what they did not make as they found it."""
    folder = tmp_path_factory.mktemp("console")
    outbox = f"sqlite:///{folder / 'shop.db'}"
    fill_outbox(outbox)
    with fake_registry() as registry:
        settings = {"outbox_database": outbox, "http_schema_registry": registry}
        with (
            running_node(folder / "node", settings) as node,
            httpx.Client(base_url=node.http_url, timeout=WAIT_SECONDS_MAX) as client,
        ):
            site = Site(node, client)
            fill(site)
            yield site


@pytest.fixture(scope="session")
def signed_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node that asks for a token, and at its Kafka door for a login; its client has none."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "password").write_text("let-the-console-in\n")
    settings = {
        "http_token": TOKEN,
        "security_login": "scram-sha-512",
        "security_admin_password_file": str(folder / "password"),
        "client_user": "admin",
        "client_password": "let-the-console-in",
    }
    with (
        running_node(folder / "node", settings) as node,
        httpx.Client(base_url=node.http_url, timeout=WAIT_SECONDS_MAX) as client,
    ):
        yield Site(node, client)
