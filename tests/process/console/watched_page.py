"""A page of the console that notes everything a page must not do.

Errors and warnings on its console (the browser reports breaches of the content policy there),
requests to another origin, and what is cut off, nameless or hidden from a keyboard.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

#: How long anything on a page may take on a machine that is busy with other tests.
SECONDS_MAX = 60.0

expect.set_options(timeout=SECONDS_MAX * 1000)

#: What sticks out of the page, unless it is cut with an ellipsis on purpose or scrolls by itself.
_STICKS_OUT = """() => {
  const width = document.documentElement.clientWidth;
  const found = [];
  if (document.documentElement.scrollWidth > width) found.push('the page scrolls sideways');
  for (const element of document.querySelectorAll('body *')) {
    if (element.closest('pre, svg, thead, .skip') || element.closest('td.line')) continue;
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.right > width + 1 || box.left < -1)) {
      found.push(`${element.tagName}.${element.className} reaches ${Math.round(box.right)}`);
    }
    const style = getComputedStyle(element);
    const hides = style.overflowX === 'hidden' || style.overflowX === 'clip';
    if (hides && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 1) {
      found.push(`${element.tagName}.${element.className} hides a part of itself`);
    }
    if (style.overflowX === 'auto' && element.scrollWidth > element.clientWidth + 1) {
      found.push(`${element.tagName}.${element.className} has to be scrolled sideways`);
    }
  }
  return found;
}"""

#: What somebody who does not see the page would not know the name of.
_NAMELESS = """() => {
  const found = [];
  for (const element of document.querySelectorAll('a[href], button, input, select, textarea')) {
    const label = element.getAttribute('aria-label') || element.textContent.trim()
      || [...(element.labels ?? [])].map((one) => one.textContent.trim()).join('');
    if (!label) found.push(element.outerHTML.slice(0, 120));
  }
  for (const element of document.querySelectorAll('[role=img]')) {
    if (!element.getAttribute('aria-label')) found.push(element.outerHTML.slice(0, 120));
  }
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  if (new Set(ids).size !== ids.length) found.push(`ids twice: ${ids}`);
  if (document.querySelectorAll('h1').length !== 1) found.push('not one h1');
  return found;
}"""


#: What axe finds that keeps somebody from using the page; by the rule, and where.
_BARRIERS = """async (rules) => {
  const only = rules ? { runOnly: { type: 'rule', values: rules } } : {};
  const { violations } = await axe.run(document, { resultTypes: ['violations'], ...only });
  return violations
    .filter((one) => ['serious', 'critical'].includes(one.impact))
    .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)}`));
}"""


class WatchedPage:
    """A page, and what it did wrong."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.wrongs: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrongs.append(f"error {error}"))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.wrongs.append(f"console {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.wrongs.append(f"asked another origin: {request.url}")

    def open(self, path: str, *, live: bool = True) -> None:
        """Goes there; returns when it is drawn, and live if it should be."""
        self.page.goto(self.origin + path, wait_until="domcontentloaded")
        self.drawn(live=live)

    def drawn(self, *, live: bool = True) -> None:
        """Waits until the page is there."""
        expect(self.page.locator("main h1")).to_be_visible()
        if live:
            expect(self.page.locator(".live")).to_have_attribute("data-state", "live")

    def faults(self) -> list[str]:
        """What is wrong with the page as it stands."""
        both = f"() => [...({_STICKS_OUT})(), ...({_NAMELESS})()]"
        return [*self.page.evaluate(both), *self.wrongs]

    def barriers(self, *rules: str) -> list[str]:
        """What axe finds serious on the page as it stands, by all of its rules or by these."""
        if not self.page.evaluate("() => 'axe' in window"):
            script = (files("axe_playwright_python") / "axe.min.js").read_text()
            self.page.evaluate(f"() => {{ {script} }}")
        found: list[str] = self.page.evaluate(_BARRIERS, list(rules) or None)
        return found

    def button(self, name: str) -> None:
        """Presses the button of exactly this name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def confirm(self, name: str) -> None:
        """Presses a button of the open dialog, and waits until it is gone."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name=name, exact=True).click()
        expect(dialog).to_have_count(0)

    def says(self, text: str) -> None:
        """Waits until the console has said this in passing."""
        expect(self.page.locator("#said")).to_contain_text(re.compile(text))


@contextmanager
def a_page(
    browser: Browser, origin: str, *, width: int = 1440, height: int = 900
) -> Iterator[WatchedPage]:
    """A page in a context of its own: no cookies, no settings."""
    context = browser.new_context(viewport={"width": width, "height": height})
    try:
        yield WatchedPage(context.new_page(), origin)
    finally:
        context.close()
