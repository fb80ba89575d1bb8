"""The browser of the console's tests, and the node that they look at."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_world import ConsoleWorld, a_world, new_outbox
from playwright.sync_api import Browser, Error, Playwright, sync_playwright
from tests.conftest import running_node
from watched_page import WatchedPage, a_page


def _launch(playwright: Playwright) -> Browser:
    """The first browser that starts. Skips at home and fails in CI where there is none."""
    system = shutil.which("chromium")
    bundled = playwright.chromium.executable_path
    tried = []
    for path in (system, bundled if Path(bundled).exists() else None):
        if path is None:
            continue
        try:
            return playwright.chromium.launch(executable_path=path)
        except Error as error:
            tried.append(f"{path}: {error.message.splitlines()[0]}")
    reason = (
        "no Chromium that starts; `make test` as root installs Debian's, and "
        f"`.venv/bin/playwright install chromium` gets one for a user. Tried: {tried or 'none'}"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser for the tests of one module."""
    with sync_playwright() as playwright:
        browser = _launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    folder = tmp_path_factory.mktemp("console")
    outbox_url = new_outbox(folder)
    with (
        running_node(folder / "node", {"outbox_database": outbox_url}) as node,
        a_world(node, outbox_url) as world,
    ):
        yield world


@pytest.fixture(scope="module")
def walked(browser: Browser, world: ConsoleWorld) -> Iterator[WatchedPage]:
    """One page for the walk through all of them."""
    with a_page(browser, world.node.http_url) as watched:
        yield watched


@pytest.fixture
def watched(browser: Browser, world: ConsoleWorld) -> Iterator[WatchedPage]:
    """A page that must have done nothing wrong in the end."""
    with a_page(browser, world.node.http_url) as watched:
        yield watched
        assert not watched.wrongs
