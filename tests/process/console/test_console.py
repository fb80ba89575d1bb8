"""The console in a real browser, on a node with real data."""

import base64
import json
import re
import shutil
import subprocess

import pytest
from console_world import (
    COMMITTED,
    LONG_TOPIC,
    ORDERS,
    SECONDS_MAX,
    TEAM_DEAD,
    TEAM_INPUT,
    ConsoleWorld,
    tell_pipeline,
)
from playwright.sync_api import expect
from watched_page import WatchedPage

#: Every page, with a word that its data puts there.
PAGES = {
    "/": "Lag of groups",
    "/topics": LONG_TOPIC,
    "/topics/orders": "billing",
    f"/topics/{LONG_TOPIC}": "retention.ms",
    "/messages": "Choose a topic",
    "/messages?topic=orders&partition=0&open=0%3A19": "traceparent",
    "/messages?topic=blobs&open=0%3A0": "000010  10 11 12",
    f"/messages?topic={LONG_TOPIC}&open=0%3A0": "word word",
    "/groups": "billing",
    "/groups/billing": "orders",
    "/groups/readers": "reader-1",
    "/timelines": "reminders",
    "/timelines/reminders": "All that waits",
    "/timelines/spare": "No consumer is connected",
    "/dead": TEAM_DEAD,
    f"/dead?source=topic&name={TEAM_DEAD}&open=topic+{TEAM_DEAD}+0%3A0": "Traceback",
    "/streams": "bots",
    "/streams/bots/prod": "10.0.0.8:8080",
    "/pipelines": "shop",
    "/pipelines/shop": "tell-the-customer-by-mail",
    "/outbox": "notes",
    "/connections": "reader-1",
    "/access": "Nobody has to log in",
    "/audit": "Audit log",
}
#: Phone, tablet, desktop.
WIDTHS = (360, 768, 1440)


@pytest.mark.parametrize(("path", "word"), PAGES.items(), ids=[path[:40] for path in PAGES])
def test_every_page_is_whole_at_every_width_in_both_themes(
    walked: WatchedPage, path: str, word: str
) -> None:
    """U5: nothing cut off, nameless, refused by the content policy or fetched from elsewhere;
    nothing that axe calls serious."""
    page = walked.page
    page.set_viewport_size({"width": 1440, "height": 900})
    walked.open(path)
    expect(page.locator("main")).to_contain_text(word)
    grounds = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        grounds[theme] = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert not walked.faults(), f"{theme}, {width} wide"
        # Only colours differ from one theme to the other.
        assert not walked.barriers(*(() if theme == "light" else ("color-contrast",))), theme
    assert grounds["light"] != grounds["dark"]


def test_the_walk_would_see_what_is_wrong(watched: WatchedPage) -> None:
    """U5: a wide box, a nameless button, an inline script and a foreign request are all noticed,
    and pale text by axe."""
    watched.open("/")
    assert not watched.faults()
    assert not watched.barriers("color-contrast")
    watched.page.evaluate(
        """async () => {
          // Not in the page itself, which is drawn anew whenever there is news.
          const box = Object.assign(document.createElement('div'), { className: 'planted' });
          document.body.append(box);
          box.style.width = '3000px';
          box.style.height = '1px';
          document.body.append(document.createElement('button'));
          const script = Object.assign(document.createElement('script'), { textContent: '1' });
          document.body.append(script);
          await fetch('http://127.0.0.1:1/').catch(() => null);
        }"""
    )
    watched.page.evaluate(
        """() => {
          const text = Object.assign(document.createElement('p'), { textContent: 'pale' });
          document.querySelector('.brand').before(text);
          text.style.color = '#eee';
          text.style.background = '#fff';
        }"""
    )
    assert "pale" in "".join(watched.barriers("color-contrast"))
    found = "\n".join(watched.faults())
    for fault in (
        "scrolls sideways",
        "DIV.planted",
        "<button",
        "inline script",
        "Content Security",
    ):
        assert fault in found
    watched.wrongs.clear()


def test_the_theme_can_be_chosen_and_stays(watched: WatchedPage) -> None:
    """U5: dark or light by the system, or as chosen, before the first paint of the next visit."""
    page = watched.page
    page.emulate_media(color_scheme="light")
    watched.open("/")
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    watched.button("Dark")
    watched.open("/topics")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != light
    watched.button("System")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == light


def test_a_page_is_light_and_fast(watched: WatchedPage) -> None:
    """U5: loads fast, because it takes few requests and few bytes."""
    page = watched.page
    page.goto(watched.origin + "/topics/orders", wait_until="commit")
    page.locator("main h1", has_text="orders").wait_for()
    sizes: list[int] = page.evaluate(
        """() => performance.getEntries()
          .filter((entry) => ['navigation', 'resource'].includes(entry.entryType))
          .map((entry) => entry.decodedBodySize)"""
    )
    # 27 files, and up to four documents, of which some come after the head on a fast machine.
    assert 10 < len(sizes) <= 35
    assert 20 * 1024 < sum(sizes) < 120 * 1024


def test_a_page_changes_without_reload_and_can_be_paused(
    watched: WatchedPage, world: ConsoleWorld
) -> None:
    """U5: live by server-sent events; paused it stands still, and then shows the present."""
    page = watched.page
    watched.open("/topics/vacant")
    page.evaluate("() => { window.sameDocument = true; }")
    records = page.locator(".tile", has_text="Records").locator(".tile-figure")
    expect(records).to_have_text("0")
    world.producer.produce("vacant", "one")
    world.producer.flush(60)
    expect(records).to_have_text("1")
    page.locator(".live").click()
    expect(page.locator(".live")).to_have_attribute("data-state", "paused")
    world.producer.produce("vacant", "two")
    world.producer.flush(60)
    assert world.end_of("vacant") == 2
    expect(records).to_have_text("1")
    page.locator(".live").click()
    expect(records).to_have_text("2")
    assert page.evaluate("() => window.sameDocument") is True


def test_the_graph_of_a_pipeline_moves(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: teams as a graph with live rates, lag and failures."""
    tell_pipeline(world, rate=21.0)
    watched.open("/pipelines/shop")
    graph = watched.page.locator(".graph svg")
    expect(graph).to_contain_text("21/s, working")
    expect(graph).to_contain_text("2 restarts")
    tell_pipeline(world, rate=77.0)
    expect(graph).to_contain_text("77/s, working")


def test_messages_are_found_and_decoded(watched: WatchedPage) -> None:
    """U5: by offset and key, as JSON, text or hex; what to show is in the address."""
    page = watched.page
    watched.open("/messages?topic=orders&partition=1&from=offset%3A3&limit=20")
    rows = page.get_by_role("table", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(17)
    page.get_by_role("button", name="Message 3 of partition 1").click()
    value = page.locator("pre[aria-label=Value]")
    expect(value).to_contain_text('  "order": 10,')
    watched.button("Hex")
    expect(value).to_contain_text("000000  7b 22 6f 72 64 65 72 22")
    assert "as=hex" in page.url
    watched.button("Text")
    expect(value).to_contain_text('{"order": 10, "customer"')
    page.go_back()
    expect(value).to_contain_text("000000  7b 22")
    watched.open("/messages?topic=orders&limit=500")
    page.get_by_label("Key is").fill("c-3")
    page.get_by_label("Key is").press("Enter")
    expect(rows).to_have_count(len([n for n in range(ORDERS) if n % 7 == 3]))
    assert "key=c-3" in page.url


def test_a_message_is_produced_again(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: as it is shown, changed where it is text; bytes that no field can hold stay the same."""
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    watched.open("/messages?topic=notes&open=0%3A0")
    watched.button("Produce again")
    expect(dialog.get_by_label("Value")).to_have_value(re.compile("<img src=x"))
    dialog.get_by_label("Value").fill("changed")
    watched.confirm("Produce")
    watched.says("Stored in partition 0")
    expect(page.get_by_role("table", name="Messages")).to_contain_text("changed")

    watched.open("/messages?topic=blobs&open=0%3A0")
    watched.button("Produce again")
    expect(dialog).to_contain_text("Value: the same 256 B")
    watched.confirm("Produce")
    watched.says("Stored in partition 0")
    url = f"{world.node.http_url}/v1/topics/blobs/messages?limit=1"
    again = page.request.get(url).json()["messages"][0]["value"]
    assert base64.b64decode(again["data"]) == bytes(range(256))


def test_a_message_is_read_and_repeated_by_commands(
    watched: WatchedPage, world: ConsoleWorld
) -> None:
    """U5: what the page gives to copy runs in a shell, quotes in the message notwithstanding."""
    if shutil.which("kcat") is None or shutil.which("curl") is None:
        pytest.skip("no kcat or no curl (Debian packages of these names)")
    value = 'it\'s $HOME "quoted"'
    world.producer.produce("vacant", value, key="k'1", headers={"h": "v"})
    assert world.producer.flush(SECONDS_MAX) == 0
    last = world.end_of("vacant") - 1
    watched.open(f"/messages?topic=vacant&open=0%3A{last}")
    watched.button("As commands")
    lines = watched.page.locator("tr.whole .command code")
    expect(lines).to_have_count(3)
    kcat, curl, repeat = (
        subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True)
        for line in lines.all_text_contents()
    )
    assert kcat.stdout.rstrip("\n") == value
    (read,) = json.loads(curl.stdout)["messages"]
    assert (read["value"]["data"], read["key"]["data"]) == (value, "k'1")
    assert json.loads(repeat.stdout)["offset"] == last + 1
    watched.button("As commands")
    expect(lines).to_have_count(0)


def test_a_message_is_shown_by_its_schema(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5, U7: a value with the number of a schema can be read by it; without a registry the page
    says what to set."""
    world.producer.produce("messages", b"\0\0\0\0\1\2A")
    assert world.producer.flush(SECONDS_MAX) == 0
    watched.open("/messages?topic=messages&open=0%3A1")
    watched.button("By schema")
    watched.says("http.schema_registry")
    watched.wrongs.clear()
    answer = {
        "topic": "messages",
        "partition": 0,
        "offset": 1,
        "key": None,
        "value": {"schema": 1, "kind": "avro", "text": '{"sku":"A"}', "trouble": None},
    }
    watched.page.route("**/decoded", lambda route: route.fulfill(json=answer))
    watched.button("By schema")
    expect(watched.page.get_by_label("Value by its schema")).to_contain_text('  "sku": "A"')


def test_what_was_written_stays_text(watched: WatchedPage) -> None:
    """U5, R3: markup in a message is shown, and is never part of the page."""
    watched.open("/messages?topic=notes&open=0%3A0")
    expect(watched.page.locator("main")).to_contain_text("<img src=x onerror=alert(1)>")
    assert watched.page.locator("main img").count() == 0


def test_a_filter_is_in_the_address_and_back_goes_back(watched: WatchedPage) -> None:
    """U5: an address can be shared, and the back button works."""
    page = watched.page
    watched.open("/topics")
    page.get_by_label("Name contains").fill("order")
    rows = page.get_by_role("table", name="Topics").locator("tbody tr")
    expect(rows).to_have_count(1)
    assert page.url.endswith("/topics?filter=order")
    watched.open("/topics?filter=order&internal=1&sort=-records")
    expect(page.get_by_label("Name contains")).to_have_value("order")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.locator("h1")).to_have_text("orders")
    page.go_back()
    expect(page.get_by_label("Name contains")).to_have_value("order")


def test_without_a_mouse(watched: WatchedPage) -> None:
    """U5: the skip link, visible focus, a dialog that holds the focus and gives it back."""
    page = watched.page
    watched.open("/topics/orders")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    assert page.locator(".skip").bounding_box()["y"] >= 0  # type: ignore[index]
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent") == "Delete":
            break
    outline = "() => getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    inside = "() => document.activeElement.matches('dialog, dialog *, body')"
    for _ in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_focused()


def test_a_topic_is_made_written_and_deleted(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: deletion names what is lost and needs the name typed; its effect is real."""
    page = watched.page
    watched.open("/topics")
    watched.button("Create topic")
    page.get_by_label("Name", exact=True).fill("short-lived")
    page.get_by_label("Partitions").fill("2")
    watched.confirm("Create")
    expect(page.locator("h1")).to_have_text("short-lived")
    watched.button("Produce")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("k")
    dialog.get_by_label("Value").fill('{"typed": true}')
    dialog.get_by_label("Headers").fill("source: console")
    watched.confirm("Produce")
    watched.says("Stored in partition")
    assert world.end_of("short-lived") == 1
    expect(page.locator(".tile", has_text="Records")).to_contain_text("1")
    watched.button("Delete")
    expect(dialog).to_contain_text("1 record")
    sure = dialog.get_by_role("button", name="Delete topic")
    expect(sure).to_be_disabled()
    dialog.get_by_role("textbox").fill("short-live")
    expect(sure).to_be_disabled()
    dialog.get_by_role("textbox").fill("short-lived")
    watched.confirm("Delete topic")
    watched.says("Deleted topic short-lived")
    world.wait("the topic is gone", lambda: "short-lived" not in world.topics())
    watched.open("/audit?filter=short-lived")
    for action in ("topic.create", "topic.delete"):
        expect(page.locator("main table")).to_contain_text(action)


def test_a_refusal_is_shown_and_nothing_is_lost(watched: WatchedPage) -> None:
    """U5, U7: a dialog stays open, says why, and keeps what was typed."""
    page = watched.page
    watched.open("/topics")
    watched.button("Create topic")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("orders")
    expect(page.get_by_label("Name", exact=True)).to_have_value("orders")
    watched.confirm("Cancel")
    assert all("409" in wrong for wrong in watched.wrongs)
    watched.wrongs.clear()


def test_a_group_is_reset(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: what would be read again is shown first; then the positions are really set."""
    assert world.committed("billing", "orders") == [COMMITTED] * 3
    watched.open("/groups/readers")
    expect(watched.page.get_by_role("button", name="Reset positions")).to_be_disabled()
    watched.open("/groups/billing")
    watched.button("Reset positions")
    watched.button("Show what changes")
    dialog = watched.page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{3 * COMMITTED} records will be read again")
    expect(dialog).to_contain_text(f"orders 0: {COMMITTED} → 0")
    watched.confirm("Reset positions")
    watched.says("Reset the positions of billing")
    assert world.committed("billing", "orders") == [0, 0, 0]
    lag = watched.page.locator(".tile", has_text="Lag").locator(".tile-figure")
    expect(lag).to_have_text(str(ORDERS))


def test_a_timed_message_is_scheduled_moved_and_cancelled(
    watched: WatchedPage, world: ConsoleWorld
) -> None:
    """U5: each with its effect on the timeline itself."""
    page = watched.page
    reminders = world.client.timeline("reminders")
    watched.open("/timelines/reminders")
    watched.button("Schedule message")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From now").fill("3")
    dialog.get_by_label("Unit").select_option("hours")
    dialog.get_by_label("Key").fill("by-hand")
    dialog.get_by_label("Body").fill("call Ada")
    watched.confirm("Schedule")
    watched.says("is scheduled")
    made = reminders.look_up_key("by-hand")
    assert made is not None
    watched.open("/timelines/reminders?key=by-hand")
    page.get_by_role("button", name=f"Move message {made.id}").click()
    dialog.get_by_label("From now").fill("5")
    dialog.get_by_label("Unit").select_option("hours")
    watched.confirm("Move")
    watched.says("is due")
    moved = reminders.look_up_key("by-hand")
    assert moved is not None
    assert abs(moved.due_ms - made.due_ms - 2 * 3_600_000) < 60_000
    page.get_by_role("button", name=f"Cancel message {made.id}").click()
    expect(dialog).to_contain_text("by-hand")
    watched.confirm("Cancel message")
    watched.says("Cancelled message")
    assert reminders.look_up_key("by-hand") is None
    expect(page.locator("main")).to_contain_text("No such message")


def test_messages_are_changed_by_filter(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5, B23: counted before anything is done; moved, cancelled, and a dead letter dropped."""
    page, timeline = watched.page, world.client.timeline("filtered")
    timeline.create()
    for name in ("ada/1", "ada/2", "bob/1"):
        timeline.schedule(b"x", delay="1h", key=name)
    before = timeline.look_up_key("ada/1")
    assert before is not None
    watched.open("/timelines/filtered")
    dialog = page.get_by_role("dialog")
    count_them = dialog.get_by_role("button", name="Count them")

    watched.button("Change by filter")
    dialog.get_by_label("What").select_option("Move messages")
    count_them.click()
    expect(dialog).to_contain_text("Say which ones")
    dialog.get_by_label("Key begins with").fill("ada/")
    dialog.get_by_label("From now").fill("5")
    dialog.get_by_label("Unit").select_option("hours")
    count_them.click()
    expect(dialog).to_contain_text("2 messages will be moved")
    watched.confirm("Move messages")
    watched.says("2 messages moved")
    moved = timeline.look_up_key("ada/1")
    assert moved is not None
    assert moved.due_ms > before.due_ms + 3 * 3_600_000

    watched.button("Change by filter")
    dialog.get_by_label("Key begins with").fill("bob/")
    count_them.click()
    expect(dialog).to_contain_text("1 message will be cancelled")
    watched.confirm("Cancel messages")
    watched.says("1 message cancelled")
    assert sorted(each.key or "" for each in timeline.peek()) == ["ada/1", "ada/2"]

    watched.button("Change by filter")
    dialog.get_by_label("What").select_option("Drop dead letters")
    dialog.get_by_label("Reason holds").fill("nothing of the kind")
    count_them.click()
    expect(dialog).to_contain_text("No dead letter fits")
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    timeline.delete()


def test_a_timeline_in_use_is_operated(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5, B23: settings, pause and resume; schedules added, changed and removed; a purge."""
    page, timeline = watched.page, world.client.timeline("operated")
    timeline.create()
    timeline.schedule(b"x", delay="1h")
    watched.open("/timelines/operated")
    dialog, main = page.get_by_role("dialog"), page.locator("main")

    watched.button("Change")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("Nothing has changed")
    dialog.get_by_label("attempts_max").fill("0")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("attempts_max")
    dialog.get_by_label("attempts_max").fill("3")
    dialog.get_by_label("when_busy").select_option("stop")
    watched.confirm("Save")
    watched.says("Changed the settings of operated")
    watched.button("Pause")
    expect(main).to_contain_text("Nothing is pushed until it is resumed")
    config = timeline.describe().config
    assert (config.attempts_max, config.when_busy, config.paused) == (3, "stop", True)
    watched.button("Resume")
    expect(main).not_to_contain_text("Nothing is pushed until it is resumed")
    assert not timeline.describe().config.paused

    rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
    for number, shown in (("10", "every 10 min"), ("20", "every 20 min")):
        watched.button("Add schedule")
        dialog.get_by_label("Name").fill("report")
        dialog.get_by_label("Every").fill(number)
        watched.confirm("Add")
        watched.says("Schedule report is set")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text(shown)
    page.get_by_role("button", name="Remove schedule report").click()
    watched.confirm("Remove schedule")
    expect(rows).to_have_count(0)

    watched.button("Purge")
    expect(dialog).to_contain_text("1 message now")
    watched.confirm("Purge")
    assert timeline.peek() == []
    assert timeline.schedules() == []
    # The refused setting is in the browser's own log, too.
    assert all("400" in wrong for wrong in watched.wrongs)
    watched.wrongs.clear()
    timeline.delete()


def test_a_timeline_is_deleted_by_name(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: as a topic."""
    world.client.timeline("doomed").create()
    watched.open("/timelines/doomed")
    watched.button("Delete")
    dialog = watched.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Delete timeline")).to_be_disabled()
    dialog.get_by_role("textbox").fill("doomed")
    watched.confirm("Delete timeline")
    watched.says("Deleted timeline doomed")
    world.wait("it is gone", lambda: "doomed" not in dict(world.client.timelines()))


def test_dead_letters_are_replayed_and_dropped(watched: WatchedPage, world: ConsoleWorld) -> None:
    """U5: of every kind in one place; a replay is handled, a drop is gone."""
    page = watched.page
    rows = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    watched.open("/dead")
    expect(rows).to_have_count(5)
    world.mended.set()
    page.get_by_role("button", name=re.compile("timeline reminders")).click()
    expect(rows).to_have_count(3)
    page.get_by_role("row", name=re.compile("poison-1")).get_by_role("checkbox").check()
    watched.button("Replay 1 letter")
    watched.confirm("Replay")
    watched.says("1 letter replayed")
    world.wait("the letter is handled", lambda: b"poison 1" in world.handled)
    expect(rows).to_have_count(2)
    page.get_by_role("row", name=re.compile("poison-2")).get_by_role("checkbox").check()
    watched.button("Drop 1 letter")
    expect(page.get_by_role("dialog")).to_contain_text("Lost for good")
    watched.confirm("Drop")
    watched.says("1 letter dropped")
    left = [letter.key for letter in world.client.timeline("reminders").dead()]
    assert left == ["poison-0"]
    page.get_by_role("button", name=re.compile(f"team {TEAM_DEAD}")).click()
    expect(rows).to_have_count(1)
    watched.button("Replay all 1 shown")
    watched.confirm("Replay")
    world.wait("the work is back", lambda: world.end_of(TEAM_INPUT) == 1)
    page.get_by_role("button", name=re.compile("outbox notes")).click()
    watched.button("Drop all 1 shown")
    watched.confirm("Drop")
    expect(page.locator("main")).to_contain_text("No dead letters here")


def test_what_is_not_there_says_so(watched: WatchedPage) -> None:
    """U7: an address of nothing says what is not there and where to go."""
    watched.open("/topics/no-such-topic", live=False)
    expect(watched.page.locator("main")).to_contain_text("no-such-topic")
    watched.page.locator("main").get_by_role("link", name="All topics").click()
    expect(watched.page.locator("h1")).to_have_text("Topics")
    assert all("404" in wrong for wrong in watched.wrongs)
    watched.wrongs.clear()


def test_the_pure_parts(watched: WatchedPage) -> None:
    """U5: figures, bytes and graphs, decided without a page."""
    watched.open("/", live=False)
    said = watched.page.evaluate(
        """async () => {
          const format = await import('/static/app/format.js');
          const decode = await import('/static/app/decode.js');
          const { layers } = await import('/static/app/graph.js');
          const bytes = (text) => new TextEncoder().encode(text);
          const edges = [['a', 'b'], ['b', 'c'], ['a', 'c'], ['c', 'a']]
            .map(([from, to]) => ({ from, to }));
          const { places, back } = layers(['a', 'b', 'c'], edges);
          return {
            spans: [0, 0.4, 2.25, 812, 61000, 3600000, 90061000].map(format.span),
            sizes: [0, 1023, 1536, 5 * 1024 ** 3].map(format.bytes),
            briefs: [0, 9999, 12345, 7654321].map(format.brief),
            unknown: [format.count(null), format.bytes(undefined), format.rate(null)],
            times: [[1000, 62000], [7200500, 500], [5, 9]].map((pair) => format.relative(...pair)),
            json: decode.asJson(bytes('{"n":12345678901234567890,"a":[],"s":"x, {y}: \\\\" z"}')),
            kinds: ['{"a":1}', 'plain', '\\u0000', '[1]', '{bad'].map(bytes).map(decode.kindOf),
            broken: decode.kindOf(new Uint8Array([0xff, 0xfe])),
            layers: [...places].map(([name, place]) => [name, place.layer]),
            back: [...back].map((edge) => `${edge.from}${edge.to}`),
          };
        }"""
    )
    assert said["spans"] == ["0 ms", "0.4 ms", "2.3 ms", "812 ms", "1 min 1 s", "1 h", "1 d 1 h"]
    assert said["sizes"] == ["0 B", "1,023 B", "1.50 KiB", "5.00 GiB"]
    assert said["briefs"] == ["0", "9,999", "12.3 k", "7.65 M"]
    assert set(said["unknown"]) == {"\N{EN DASH}"}
    assert said["times"] == ["1 min ago", "in 2 h", "now"]
    shown = '{\n  "n": 12345678901234567890,\n  "a": [],\n  "s": "x, {y}: \\" z"\n}'
    assert said["json"] == shown
    assert json.loads(shown)["s"] == 'x, {y}: " z'
    assert said["kinds"] == ["json", "text", "hex", "json", "text"]
    assert said["broken"] == "hex"
    assert said["layers"] == [["a", 0], ["b", 1], ["c", 2]]
    assert said["back"] == ["ca"]
