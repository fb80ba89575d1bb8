"""A real browser for the console's tests: Debian's Chromium, else Playwright's own."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Playwright, sync_playwright


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
