"""Masters that wait: who takes part in the election, and when."""

import asyncio
import functools
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stream.memory_cluster import MemoryCluster

from dovetail.election import ElectionSettings
from dovetail.errors import InvalidInput
from dovetail.spark.java_process import SparkGone
from dovetail.supervision import Supervisor
from dovetail.teams import Pipeline, Team, master
from dovetail.teams.chains.snapshot import Snapshot, created
from dovetail.teams.master import Master, run_team_masters, settings_for


async def test_a_standby_is_elected_before_it_is_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: on a full Spark cluster its warm-up waits for the slots of the master that is gone."""
    slots, leads = threading.Event(), asyncio.Event()

    async def lead(self: Master, term: int, lost: asyncio.Event) -> None:
        leads.set()
        await lost.wait()

    monkeypatch.setattr(master, "warm_up", lambda _spark: slots.wait(30))
    monkeypatch.setattr(Master, "_lead", lead)
    events: list[str] = []
    spark: Any = None
    async with MemoryCluster(tmp_path) as cluster:
        one = Master(
            Pipeline("p", Team("t", dict)),
            spark,
            cluster.member("a"),
            bootstrap="nowhere:1",
            checkpoint="",
            on_event=lambda event, _term: events.append(event),
        )
        running = asyncio.ensure_future(one.run())
        try:
            async with asyncio.timeout(60):
                await leads.wait()
        finally:
            slots.set()
            running.cancel()
            await asyncio.wait([running])
    assert events[:1] == ["standby"]
    assert "warm" not in events


class HungEngine:
    """An engine whose Spark does not answer until its Java is killed."""

    def __init__(self, *_: Any, hangs: str, killed: threading.Event, **more: Any) -> None:
        self._hangs, self._killed, self._stopped = hangs, killed, threading.Event()

    def start(self) -> None:
        if self._hangs == "start":
            self._killed.wait(60)

    def watch(self) -> None:
        self._stopped.wait(60)

    def stop(self) -> None:
        self._stopped.set()
        self._killed.wait(60)


@pytest.mark.parametrize("hangs", ["start", "watch"])
async def test_a_master_says_that_it_has_lost_whatever_spark_does(
    monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """T2: at once; and if Spark does not let it stop, the driver ends instead of standing by."""
    killed, said = threading.Event(), asyncio.Event()
    made = functools.partial(HungEngine, hangs=hangs, killed=killed)
    monkeypatch.setattr(master, "Engine", made)
    monkeypatch.setattr(master.java_process, "end", lambda _spark: killed.set())
    events: list[tuple[str, int]] = []

    def on_event(event: str, term: int) -> None:
        events.append((event, term))
        if event == "lost":
            said.set()

    spark: Any = None
    member: Any = None
    given = {"bootstrap": "nowhere:1", "checkpoint": "", "on_event": on_event}
    one = Master(Pipeline("p", Team("t", dict)), spark, member, **given)
    lost = asyncio.Event()
    leading = asyncio.ensure_future(one._lead(3, lost))
    async with asyncio.timeout(60):
        while hangs == "watch" and not events:
            await asyncio.sleep(0)
        lost.set()
        await said.wait()
        assert events == [("started", 3)] * (hangs == "watch") + [("lost", 3)]
        assert not killed.is_set(), "there is time for that"
        monkeypatch.setattr(master, "STOP_S_MAX", 0.1)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        with pytest.raises(SparkGone, match="did not end its tasks"):
            await one._end(made())
    assert killed.is_set()


async def test_a_standby_whose_spark_has_ended_does_not_wait_to_be_elected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: it would lead and could do nothing; it ends, so that it is started again."""

    def warm_up(_spark: Any) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(master, "warm_up", warm_up)
    monkeypatch.setattr(master.java_process, "has_ended", lambda _spark: True)
    spark: Any = None
    async with MemoryCluster(tmp_path) as cluster:
        leader = cluster.member("a")
        async with leader:
            await leader.lead()
            given = {"bootstrap": "nowhere:1", "checkpoint": ""}
            one = Master(Pipeline("p", Team("t", dict)), spark, cluster.member("b"), **given)
            async with asyncio.timeout(60):
                with pytest.raises(SparkGone):
                    await one.run()


async def test_each_team_has_a_master_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F71, T19: two drivers, two teams; the master of one fails, the other team stays put."""
    leads: dict[str, list[str]] = {"x": [], "y": []}
    fails = asyncio.Event()

    async def lead(self: Master, term: int, lost: asyncio.Event) -> None:
        driver, team = self._bootstrap, str(self._team)
        leads[team].append(driver)
        if team == "x" and len(leads["x"]) == 1:
            await fails.wait()
            raise RuntimeError("this team cannot be served here")
        await lost.wait()

    monkeypatch.setattr(master, "warm_up", lambda _spark: None)
    monkeypatch.setattr(Master, "_lead", lead)
    pipeline = Pipeline("p", Team("x", dict), Team("y", dict), masters="team")
    spark: Any = None
    supervisor = Supervisor()
    async with MemoryCluster(tmp_path / "x") as x, MemoryCluster(tmp_path / "y") as y:
        clusters = {"x": x, "y": y}

        def masters_of(driver: str) -> asyncio.Future[None]:
            def make(team: str) -> Master:
                member = clusters[team].member(driver)
                return Master(pipeline, spark, member, bootstrap=driver, checkpoint="", team=team)

            return asyncio.ensure_future(run_team_masters(pipeline.teams, make))

        with supervisor.supervising():
            running = [masters_of("a"), masters_of("b")]
        try:
            await x.until(lambda: leads["x"] and leads["y"])
            steady = list(leads["y"])
            fails.set()
            await x.until(lambda: len(leads["x"]) > 1)
        finally:
            for one in running:
                one.cancel()
            await asyncio.wait(running)
    assert leads["y"] == steady
    assert supervisor.counts()["teams/team-master"] == 1


def test_elections_of_teams_do_not_meet() -> None:
    """F71: same log and same port; another environment, another path, another file of votes."""
    given = ElectionSettings(coordination_stream_id="log", endpoint_host_and_port="a:1")
    one, other = settings_for(given, "one"), settings_for(given, "other")
    for found in (one, other):
        found.check()
        assert found.coordination_stream_id == "log"
        assert found.listen_address == given.listen_address
    assert one.environment_identifier != other.environment_identifier
    assert one.endpoint != other.endpoint
    assert one.vote_path != other.vote_path
    with pytest.raises(InvalidInput, match="masters='each'"):
        Pipeline("p", Team("t", dict), masters="each")


def test_terms_of_two_elections_do_not_compare() -> None:
    """F71: a pipeline that changes to `masters="team"`, or back, goes on under lower terms."""
    place = ("in", 0)
    old = created(place, 0, {}, at_ms=1, term=57)
    new = old.led_by(3, own=True)
    assert (new.term, new.own) == (3, True)
    stored = {at: (offset, new.texts()[at]) for at, offset in new.positions().items()}
    assert Snapshot.of(place, stored) == new
    assert new.led_by(2, own=True).term == 3, "an old master of the same election is known"
    assert new.led_by(2, own=False).term == 2
