"""The console of a node that asks for a token, is empty, and goes away."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.conftest import RunningNode, running_node
from watched_page import WatchedPage, a_page

TOKEN = "a-token-that-nobody-would-guess"

#: Pages of an empty node, and the command that each tells.
EMPTY = {
    "/": "dovetail produce orders",
    "/topics": "dovetail topic create orders --partitions 4",
    "/messages": "dovetail produce orders",
    "/groups": "dovetail consume orders --group billing",
    "/timelines": "dovetail timeline create reminders",
    "/streams": "python -m examples.bot.run",
    "/pipelines": "dovetail pipeline run",
    "/outbox": "--set outbox.database=",
    "/dead": "No dead letters",
    "/access": "dovetail access allow shop",
    "/audit": "session",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "password").write_text("a-password-for-the-admin\n")
    settings = {
        "http_token": TOKEN,
        "security_login": "scram-sha-512",
        "security_admin_password_file": str(folder / "password"),
    }
    with running_node(folder / "node", settings) as node:
        yield node


@pytest.fixture(scope="module")
def visitor(browser: Browser, guarded: RunningNode) -> Iterator[WatchedPage]:
    """One visitor for all tests here, which build on each other's sign-in."""
    with a_page(browser, guarded.http_url, width=360, height=740) as watched:
        yield watched


def _sign_in(visitor: WatchedPage, token: str) -> None:
    visitor.page.get_by_label("Token").fill(token)
    visitor.button("Sign in")


def test_a_token_is_asked_for_and_leads_back(visitor: WatchedPage) -> None:
    """U5, R4: nothing is shown without the token; with it, the page that was asked for."""
    page = visitor.page
    page.goto(visitor.origin + "/topics?filter=abc")
    expect(page.locator("h1")).to_have_text("Sign in")
    _sign_in(visitor, "a-token-that-is-not-the-right-one")
    expect(page.get_by_role("alert")).to_contain_text("not the token")
    _sign_in(visitor, TOKEN)
    expect(page.locator("h1")).to_have_text("Topics")
    assert page.url.endswith("/topics?filter=abc")
    assert page.evaluate("() => document.cookie") == ""
    assert all("401" in wrong for wrong in visitor.wrongs)
    visitor.wrongs.clear()


@pytest.mark.parametrize(("path", "command"), EMPTY.items())
def test_an_empty_page_says_what_to_do(visitor: WatchedPage, path: str, command: str) -> None:
    """U5, U7: with the command to copy; also on a phone, and nothing is cut off."""
    if "Sign in" in visitor.page.title():
        _sign_in(visitor, TOKEN)
    visitor.open(path)
    expect(visitor.page.locator("main")).to_contain_text(command)
    for theme in ("light", "dark"):
        visitor.page.emulate_media(color_scheme=theme)
        assert not visitor.faults()


def test_a_rule_is_added_and_removed(visitor: WatchedPage) -> None:
    """U5, R4: with its effect on the list of the node; on a phone too."""
    if "Sign in" in visitor.page.title():
        visitor.page.goto(visitor.origin + "/")
        _sign_in(visitor, TOKEN)
    visitor.open("/access")
    visitor.button("Add rule")
    dialog = visitor.page.get_by_role("dialog")
    dialog.get_by_label("User").fill("shop")
    dialog.get_by_label("Operation").select_option("write")
    dialog.get_by_label("Name").fill("orders*")
    visitor.confirm("Add")
    rules = visitor.page.get_by_role("table", name="Rules")
    expect(rules).to_contain_text("topic orders*")
    assert not visitor.faults()
    assert not visitor.barriers()
    visitor.button("Remove: allow shop write topic orders*")
    visitor.confirm("Remove rule")
    visitor.says("The rule was removed")
    expect(rules).to_have_count(0)


def test_the_menu_of_a_phone(visitor: WatchedPage) -> None:
    """U5: at 360 pixels the ways are behind a button, and fit."""
    page = visitor.page
    visitor.open("/")
    ways = page.get_by_role("navigation", name="Pages")
    expect(ways).to_be_hidden()
    visitor.button("Menu")
    expect(ways).to_be_visible()
    assert not visitor.faults()
    page.get_by_role("link", name="Groups", exact=True).click()
    expect(page.locator("h1")).to_have_text("Groups")
    expect(ways).to_be_hidden()


def test_a_node_that_goes_away_and_comes_back(visitor: WatchedPage, guarded: RunningNode) -> None:
    """U5, U7: the page says that it is no longer live, offers nothing that needs the node, and goes
    on by itself; a dialog keeps what was typed."""
    page = visitor.page
    visitor.open("/topics")
    visitor.button("Create topic")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("typed")
    guarded.stop()
    expect(page.locator(".live")).to_have_attribute("data-state", "lost")
    expect(page.locator(".live")).to_contain_text("Connection lost")
    expect(dialog).to_contain_text("The node does not answer")
    expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    expect(page.locator("main")).to_contain_text("nothing can be changed")
    expect(page.locator("main .button.primary")).to_be_disabled()

    guarded.start()
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("typed")
    expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_enabled()
    visitor.confirm("Cancel")
    expect(page.locator("main")).not_to_contain_text("nothing can be changed")
    expect(page.locator("main .button.primary")).to_be_enabled()
    visitor.wrongs.clear()


def test_a_session_that_ended_is_noticed_by_a_live_page(visitor: WatchedPage) -> None:
    """U5, R4: a stream that is refused leads to the sign-in, and back to the same page."""
    page = visitor.page
    visitor.open("/groups?filter=x")
    live = page.locator(".live")
    live.click()
    expect(live).to_have_attribute("data-state", "paused")
    page.context.clear_cookies()
    live.click()
    expect(page.locator("h1")).to_have_text("Sign in")
    _sign_in(visitor, TOKEN)
    expect(page.locator("h1")).to_have_text("Groups")
    assert page.url.endswith("/groups?filter=x")
    visitor.wrongs.clear()


def test_signing_out(visitor: WatchedPage) -> None:
    """U5, R4: afterwards nothing is shown."""
    page = visitor.page
    visitor.open("/")
    visitor.button("Menu")
    visitor.button("Sign out")
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto(visitor.origin + "/groups")
    expect(page.locator("h1")).to_have_text("Sign in")
