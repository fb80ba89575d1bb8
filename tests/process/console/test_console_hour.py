"""Charts of the last hour in a real browser, on a node with real data."""

import re

from console_world import COMMITTED, ORDERS, ConsoleWorld
from playwright.sync_api import Browser, Locator, Route, expect
from watched_page import WatchedPage, a_page


def chart(watched: WatchedPage, name: str) -> Locator:
    return watched.page.get_by_role("img", name=re.compile(f"^{name} over the last hour"))


def test_the_overview_has_charts_of_the_last_hour(
    watched: WatchedPage, world: ConsoleWorld
) -> None:
    """U5: messages and bytes in and out, lag, due messages, lateness, errors; each says what it
    shows to those who do not see it, and live."""
    watched.open("/")
    names = (
        "Messages",
        "Bytes",
        "Lag of groups",
        "Messages due on timelines",
        "Lateness",
        "Errors answered",
    )
    for name in names:
        expect(chart(watched, name)).to_be_visible()

    lag = ORDERS - 3 * COMMITTED
    said = re.compile(f"now {lag}, at most {lag}")
    expect(chart(watched, "Lag of groups")).to_have_attribute("aria-label", said)
    for _ in range(50):
        world.producer.produce("notes", b"x" * 100)
    world.producer.flush(60)

    peak = re.compile(r"in now .*, at most [0-9.]+/s")
    expect(chart(watched, "Messages")).to_have_attribute("aria-label", peak)
    expect(chart(watched, "Bytes").locator("path.line-0")).to_have_attribute("d", re.compile("^M"))
    assert not watched.faults()


def test_a_chart_tells_the_values_under_the_pointer(watched: WatchedPage) -> None:
    """U5: time and value of one step; the span of time again when the pointer leaves."""
    watched.open("/")
    one = watched.page.locator(".chart", has_text="Lag of groups")
    expect(chart(watched, "Lag of groups")).to_have_attribute("aria-label", re.compile("now 4"))
    box = one.locator("svg").bounding_box()
    assert box is not None
    watched.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
    expect(one.locator(".chart-time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: "))
    watched.page.mouse.move(0, 0)
    expect(one.locator(".chart-time")).to_contain_text("1 h ago")


def test_a_group_has_its_lag_over_time_by_partition(watched: WatchedPage) -> None:
    """U5: the group, and each partition on the same scale."""
    watched.open("/groups/billing")
    lag = ORDERS // 3 - COMMITTED
    expect(chart(watched, "The group")).to_have_attribute(
        "aria-label", re.compile(f"now {3 * lag},")
    )
    for number in range(3):
        of_partition = chart(watched, f"orders {number}")
        expect(of_partition).to_have_attribute("aria-label", re.compile(f"now {lag},"))
    assert not watched.faults()


def test_without_its_charts_the_overview_shows_the_rest(
    browser: Browser, world: ConsoleWorld
) -> None:
    """U5: a node that cannot give its history is no reason to show nothing."""

    def refuse(route: Route) -> None:
        problem = {"kind": "Unavailable", "message": "not now", "retriable": True}
        route.fulfill(status=503, json={"error": problem})

    with a_page(browser, world.node.http_url) as watched:
        watched.page.route("**/v1/history", refuse)
        watched.page.route("**/v1/live**", lambda route: route.abort())
        watched.open("/", live=False)
        expect(watched.page.locator("main")).to_contain_text("Lag of groups")
        expect(watched.page.locator(".chart")).to_have_count(0)
