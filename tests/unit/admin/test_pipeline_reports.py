"""The report that counts for a pipeline."""

import json

from dovetail.admin.pipelines import (
    CANCELS,
    JOB_ID_BYTES_MAX,
    JOB_ID_CHARACTERS,
    REASON_CHARACTERS_MAX,
    SILENT_MS,
    TOPIC,
    Pipeline,
    Reports,
)
from dovetail.teams import cancelling, progress
from dovetail.teams import envelope as teams_envelope
from dovetail.teams import report as teams_report
from dovetail.teams.graph import cancels_topic


class World:
    """Reports of the pipeline `p`, and the time."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.now_ms = 1_000_000

    def take(
        self, driver: str, state: str = "running", *, term: int = 1, standby: bool = False
    ) -> None:
        self.now_ms += 1
        document = {"pipeline": "p", "state": state, "driver": driver, "term": term}
        key = f"p#{driver}" if standby else "p"
        self.reports.take(key.encode(), json.dumps(document).encode(), at_ms=self.now_ms)

    def now(self) -> Pipeline:
        (found,) = self.reports.pipelines(now_ms=self.now_ms)
        return found


def test_the_names_are_those_of_the_record() -> None:
    """T11: what drivers write is what is read."""
    assert TOPIC == teams_report.TOPIC
    assert SILENT_MS == teams_report.SILENT_S_MAX * 1000
    assert cancels_topic("shop") == f"shop{CANCELS}"
    assert teams_envelope.JOB_ID_BYTES_MAX == JOB_ID_BYTES_MAX
    assert cancelling.REASON_CHARACTERS_MAX == REASON_CHARACTERS_MAX
    assert progress._NOTE_ID_CHARACTERS == JOB_ID_CHARACTERS


def test_the_address_of_sparks_pages_is_one() -> None:
    """T20, R6: it becomes a link in the console; what a browser would run is passed over."""
    reports = Reports()
    for given, kept in (
        ("http://driver:4040", "http://driver:4040"),
        ("https://driver", "https://driver"),
        ("javascript:alert(1)", None),
        (None, None),
    ):
        document = {"pipeline": "p", "driver": "a", "ui": given}
        reports.take(b"p", json.dumps(document).encode(), at_ms=1_000)
        (found,) = reports.pipelines(now_ms=1_000)
        assert found.ui == kept


def test_a_job_has_an_age_from_the_first_report_that_names_it() -> None:
    """T11: as long as each report names it; one that comes again begins anew."""
    reports = Reports()

    def ages(now_ms: int, *jobs: str) -> dict[str, int | None]:
        team = {"team": "price", "jobs": [{"id": job, "part": 0.5} for job in jobs]}
        document = {"pipeline": "p", "driver": "a", "teams": [team]}
        reports.take(b"p", json.dumps(document).encode(), at_ms=now_ms)
        (found,) = reports.pipelines(now_ms=now_ms)
        return {job.id: job.first_ms for job in found.teams[0].jobs}

    assert ages(1_000, "j1") == {"j1": 1_000}
    assert ages(2_000, "j1", "j2") == {"j1": 1_000, "j2": 2_000}
    assert ages(3_000, "j2") == {"j2": 2_000}
    assert ages(4_000, "j1", "j2") == {"j1": 4_000, "j2": 2_000}


def test_the_newest_report_of_the_highest_term_counts() -> None:
    """T11: a driver that was replaced cannot speak for the pipeline any more."""
    world = World()
    world.take("a", term=1)
    world.take("b", term=2)
    world.take("a", "failed", term=1)
    assert (world.now().driver, world.now().state) == ("b", "running")
    world.take("b", "stopped", term=2)
    world.take("a", term=1)
    assert world.now().driver == "a", "the one with the higher term has stopped"


def test_a_driver_that_misses_its_reports_is_silent() -> None:
    """T11: what it said last is not what it is now; an end stays an end."""
    world = World()
    world.take("a", term=5)
    world.now_ms += SILENT_MS
    assert world.now().state == "running"
    world.now_ms += 1
    assert (world.now().state, world.now().silent_ms) == ("silent", SILENT_MS + 1)
    world.take("b", term=1)
    assert world.now().driver == "b", "terms began anew, and nobody contradicts"
    world.take("b", "failed", term=1)
    world.now_ms += 2 * SILENT_MS
    assert world.now().state == "failed"


def test_standbys_are_those_that_wait_now() -> None:
    """T11: one that stopped, fell silent or has led since is none; alone they are the pipeline."""
    world = World()
    world.take("a", "waiting for election", standby=True)
    assert (world.now().state, world.now().standbys) == ("waiting for election", ["a"])
    world.take("b", "waiting for election", standby=True)
    world.take("c", "waiting for election", standby=True)
    world.take("c", "stopped", standby=True)
    world.take("a", term=2)
    assert (world.now().driver, world.now().standbys) == ("a", ["b"])


def test_what_is_not_a_report_is_passed_over() -> None:
    """R3: others may write to the topic too."""
    world = World()
    for value in (None, b"", b"no report", b"[]", b'{"pipeline": 7}', b"\xff"):
        world.reports.take(b"odd", value, at_ms=world.now_ms)
    assert world.reports.pipelines(now_ms=world.now_ms) == []
    world.take("a")
    assert world.now().lag == 0


def test_teams_with_masters_of_their_own_are_put_together() -> None:
    """F71, T11: each team as its master reports it; drivers that lead none stand by."""
    world = World()

    def take(driver: str, state: str = "running", **terms: int) -> None:
        world.now_ms += 1
        teams = [
            {"team": name, "state": "working" if name in terms else "standby"}
            | {"term": terms.get(name, 0), "lag": terms.get(name)}
            for name in ("x", "y")
        ]
        document = {"pipeline": "p", "state": state, "driver": driver, "masters": "team"}
        value = json.dumps(document | {"teams": teams}).encode()
        world.reports.take(f"p#{driver}".encode(), value, at_ms=world.now_ms)

    take("c", "waiting for election")
    assert (world.now().state, world.now().standbys) == ("waiting for election", ["c"])
    take("a", x=4)
    take("b", "retrying", y=7)
    found = world.now()
    assert [(one.team, one.driver, one.term) for one in found.teams] == [
        ("x", "a", 4),
        ("y", "b", 7),
    ]
    assert (found.state, found.driver, found.term) == ("retrying", "a, b", 7)
    assert (found.standbys, found.lag) == (["c"], 11)
    take("b", x=5, y=7)
    take("a", x=4)
    assert {one.driver for one in world.now().teams} == {"b"}, "a does not know it yet"
    take("b", "stopped", x=5, y=7)
    assert [one.driver for one in world.now().teams] == ["a", ""]
