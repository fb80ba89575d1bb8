"""Lists of the console at many topics: from memory, and by the page."""

import re

import httpx
from confluent_kafka import Consumer, TopicPartition
from tests.console_kit import Site, wait_for

PARTITIONS = 60


def asked(site: Site, api: str) -> int:
    """How many requests of this kind the node has answered."""
    page = site.client.get("/metrics").text
    found = re.search(rf'dovetail_request_seconds_count{{api="{api}"}} ([0-9.e+]+)', page)
    return 0 if found is None else int(float(found[1]))


def names(answer: httpx.Response, what: str = "topic") -> list[str]:
    assert answer.status_code == 200, answer.text
    return [row[what] for row in answer.json()[f"{what}s"]]


def test_lists_come_from_memory(site: Site) -> None:
    """F6a: topics, a topic and the ends of groups are known; no partition is asked for them."""
    site.make_topic("many", PARTITIONS)
    site.produce("many", *[b"x"] * 40)
    consumer = Consumer({"bootstrap.servers": site.node.bootstrap, "group.id": "of-many"})
    places = [TopicPartition("many", number, 0) for number in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()

    before = asked(site, "ListOffsets")
    assert site.get("/v1/topics/many")["records"] == 40
    (row,) = site.get("/v1/topics", filter="many")["topics"]
    assert (row["records"], row["partitions"]) == (40, PARTITIONS)
    assert row["bytes"] > 0
    (group,) = site.get("/v1/groups", filter="of-many")["groups"]
    assert group["lag"] == 40
    assert site.get("/v1/groups/of-many")["lag"] == 40
    assert asked(site, "ListOffsets") == before

    # The overview reads a few topics on and on: two requests for each, however many others exist.
    before = asked(site, "ListOffsets")
    assert site.get("/v1/overview")["totals"]["lag"] >= 40
    first = asked(site, "ListOffsets") - before
    for number in range(8):
        site.make_topic(f"more-{number}", 10)
    before = asked(site, "ListOffsets")
    assert site.get("/v1/overview")["totals"]["topics"] >= 8
    assert asked(site, "ListOffsets") - before <= first

    assert site.send("DELETE", "/v1/groups/of-many").status_code == 204
    for name in ("many", *(f"more-{number}" for number in range(8))):
        assert site.send("DELETE", f"/v1/topics/{name}").status_code == 204
    wait_for("all are gone", lambda: not site.get("/v1/topics", filter="more-")["topics"])


def test_lists_are_filtered_sorted_and_cut_at_the_server(site: Site) -> None:
    """F6a: a page of what matches, in the wanted order, and how many match."""
    for number in range(5):
        site.make_topic(f"paged-{number}", 5 - number)
        site.produce(f"paged-{number}", *[b"x"] * number)
    get = site.client.get
    everything = {"filter": "paged-"}
    assert names(get("/v1/topics", params=everything)) == [f"paged-{n}" for n in range(5)]
    page = get("/v1/topics", params=everything | {"sort": "-records", "limit": 2, "offset": 1})
    assert names(page) == ["paged-3", "paged-2"]
    assert (page.json()["total"], page.json()["records"]) == (5, 10)
    by_size = get("/v1/topics", params=everything | {"sort": "partitions", "limit": 1})
    assert names(by_size) == ["paged-4"]
    assert names(get("/v1/topics", params=everything | {"offset": 99})) == []

    assert not [name for name in names(get("/v1/topics")) if name.startswith("__")]
    internal = names(get("/v1/topics", params={"internal": "true", "filter": "__dovetail"}))
    assert "__dovetail_groups" in internal
    for query in ({"sort": "colour"}, {"limit": 0}, {"limit": 10_001}, {"offset": -1}):
        assert get("/v1/topics", params=query).status_code == 400
        assert get("/v1/groups", params=query).status_code == 400
    for number in range(5):
        assert site.send("DELETE", f"/v1/topics/paged-{number}").status_code == 204


def test_a_part_of_a_list_can_be_watched(site: Site) -> None:
    """F6a: the page that is open is sampled, and no more."""
    site.make_topic("watched-part")
    part = {"watch": "topics?filter=watched-part&limit=1"}
    with site.client.stream("GET", "/v1/live", params=part) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and "watched-part" in line and '"total"' in line:
                assert line.count('"topic":') == 1
                break
    for watch in ("topics?colour=red", "topics?limit=0", "topics:orders", "overview?limit=1"):
        assert site.client.get("/v1/live", params={"watch": watch}).status_code == 400
    assert site.send("DELETE", "/v1/topics/watched-part").status_code == 204
