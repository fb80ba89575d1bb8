"""What the console tells of the past, and of who has what: in a real browser, on real data."""

import re

import httpx
from console_world import COMMITTED, ORDERS, ConsoleWorld
from playwright.sync_api import Browser, Locator, Route, expect
from watched_page import WatchedPage, a_page


def chart(watched: WatchedPage, name: str) -> Locator:
    return watched.page.get_by_role("img", name=re.compile(f"^{name} over the last hour"))


def test_the_overview_has_charts_of_the_last_hour(
    watched: WatchedPage, world: ConsoleWorld
) -> None:
    """U5: messages and bytes in and out, lag, due messages, lateness, errors, and what the process
    needs; each says what it shows to those who do not see it, and live."""
    watched.open("/")
    names = (
        "Messages",
        "Bytes",
        "Lag of groups",
        "Messages due on timelines",
        "Lateness",
        "Errors answered",
        "Processor",
        "Memory",
        "Connections",
        "Event-loop delay",
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
    expect(one.locator(".chart-time")).to_contain_text("min ago")


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


def test_a_timeline_tells_why_messages_died_and_when_schedules_fire(watched: WatchedPage) -> None:
    """U5: errors by reason with a way to the letters, attempts, next times of a schedule."""
    page = watched.page
    watched.open("/timelines/reminders")
    rows = page.get_by_role("table", name="Errors by reason").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("the customer has no address")
    expect(rows).to_contain_text("3")
    nightly = page.get_by_role("table", name="Schedules").locator("tbody tr")
    expect(nightly.locator("li")).to_have_count(3)
    message = page.get_by_role("button", name=re.compile(r"^Message \d+$")).last
    message.click()
    expect(page.locator("tr.whole")).to_contain_text("0 of 1, next attempt in")
    assert not watched.faults()

    page.get_by_role("link", name="Read, replay or drop them").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")
    expect(page.get_by_role("table", name="By reason")).to_contain_text("has no address")
    assert not watched.faults()


def test_a_timeline_tells_who_holds_what(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: the consumer, how many messages it has, when its lease ends, and which ones."""
    timeline = world.client.timeline("held")
    timeline.create()
    scheduled = timeline.schedule(b"in hand", delay="0s", key="<b>the one</b>")
    path = f"{world.node.http_url}/v1/timelines/held/receive"
    wanted = {"consumer": "holder-7", "wait_ms": 20_000, "limit": 1, "lease_ms": 600_000}
    (got,) = httpx.post(path, json=wanted, timeout=60).raise_for_status().json()["messages"]
    assert got["id"] == scheduled.id
    watched.open("/timelines/held")
    row = watched.page.get_by_role("table", name="Who holds what").locator("tbody tr")
    expect(row).to_contain_text("holder-7")
    row.get_by_role("button", name=f"Look up message {scheduled.id}").click()
    expect(watched.page.locator("tr.whole")).to_contain_text(re.compile("with .*holder-7"))
    assert watched.page.locator("main b").count() == 0
    assert not watched.faults()
    timeline.delete()


def test_a_pipeline_tells_what_it_does_and_a_job_is_cancelled(
    watched: WatchedPage, world: ConsoleWorld
) -> None:
    """U5, T11: jobs in hand with their age, failures by reason; a cancel is really stored."""
    page = watched.page
    watched.open("/pipelines/shop")
    job = page.get_by_role("table", name="Jobs in hand").locator("tbody tr")
    expect(job).to_contain_text("order-7")
    expect(job).to_contain_text("40 %")
    expect(job).to_contain_text("<i>pricing</i>")
    failures = page.get_by_role("table", name="Failures by reason")
    expect(failures).to_contain_text("ZeroDivisionError: division by zero")
    assert not watched.faults()

    job.get_by_role("button", name="Cancel job order-7").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Job id")).to_have_value("order-7")
    dialog.get_by_label("Reason").fill("sold out")
    watched.confirm("Cancel job")
    watched.says("The cancel is stored")
    path = f"{world.node.http_url}/v1/topics/shop.cancels/messages"
    (record,) = httpx.get(path, timeout=60).raise_for_status().json()["messages"]
    assert (record["key"]["data"], record["value"]["data"]) == ("order-7", "sold out")
    watched.open("/audit?filter=pipeline.cancel")
    expect(page.locator("main table")).to_contain_text("shop")


def test_charts_of_a_young_node_begin_with_its_first_figure(watched: WatchedPage) -> None:
    """U5: an hour of which a minute is known fills the chart with five minutes, not one pixel."""
    watched.open("/", live=False)
    said = watched.page.evaluate(
        """async () => {
          const { filled } = await import('/static/app/hour.js');
          const of = (...firsts) => filled(
            { first_ms: 1000, step_ms: 5000 },
            firsts.map((first) => Array(720).fill(null).fill(0, first)),
          ).skip;
          return [of(0), of(720), of(719), of(708, 714), of(714, 600), of(1)];
        }"""
    )
    assert said == [0, 660, 660, 660, 600, 0]


def test_settings_that_do_nothing_show_on_demand(watched: WatchedPage) -> None:
    """U5: those that Kafka's clients ask for and that have no effect here hide behind a switch;
    a value without end is written as one."""
    page = watched.page
    watched.open("/topics/orders")
    settings = page.get_by_role("table", name="Settings")
    expect(settings).to_contain_text("retention.ms")
    expect(settings).not_to_contain_text("file.delete.delay.ms")
    expect(settings).to_contain_text("9223372036854775807 no limit")
    page.get_by_label("Settings without effect too").check()
    expect(settings).to_contain_text("file.delete.delay.ms")
