"""A member without a stream: it is elected, knows its term, and knows when it has lost it."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.stream.memory_cluster import MemoryCluster

from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator, EmbeddedCoordinator
from dovetail.election import (
    Algorithm,
    Campaigner,
    ClusterMember,
    MemberName,
    MemberStatus,
    MemoryLog,
    MemorySharedLog,
    MemoryTransport,
    Role,
    VoteFile,
)
from dovetail.election.campaign import campaigner_of
from dovetail.election.effects import Lead
from dovetail.election.fold import Claim, Leave, Twins
from dovetail.election.identifiers import Incarnation, Term
from dovetail.errors import Fenced, InvalidSetting, Unavailable


async def test_one_of_three_leads_and_hands_over_when_it_stops(tmp_path: Path) -> None:
    """S3, S7, S11: a leader that is closed is followed, and says farewell in the log."""
    async with MemoryCluster(tmp_path) as cluster:
        for name in ("a", "b", "c"):
            await cluster.start_member(name)
        leader = await cluster.wait_leader()
        leadership = await cluster.members[leader].lead()
        assert leadership.valid
        await leadership.confirm()
        await cluster.members[leader].close()
        assert leadership.lost.is_set()
        assert not leadership.valid
        await cluster.wait_leader(other_than=leader)
        assert any(isinstance(record, Leave) for record, _ in cluster.log.records)


async def test_an_old_leader_is_refused_and_learns_of_it(tmp_path: Path) -> None:
    """S7, S8: it is cut off from the members, and the log tells it."""
    async with MemoryCluster(tmp_path) as cluster:
        for name in ("a", "b", "c"):
            await cluster.start_member(name)
        leader = await cluster.wait_leader()
        old = await cluster.members[leader].lead()
        cluster.network.cut_off(MemberName(leader))
        await cluster.wait_leader(other_than=leader)
        await asyncio.wait_for(old.lost.wait(), 60)
        with pytest.raises(Fenced, match=f"term {old.term}"):
            await old.confirm({0: 99})
        new = await cluster.members[await cluster.wait_leader()].lead()
        assert new.term > old.term


async def test_callbacks_and_metrics_tell_role_and_term(tmp_path: Path) -> None:
    """S11: after every change; a callback that raises ends nothing."""
    async with MemoryCluster(tmp_path) as cluster:
        member = cluster.member("a")
        told: list[MemberStatus] = []

        def broken(_: MemberStatus) -> None:
            raise RuntimeError("a user's mistake")

        member.on_change[:0] = [broken, told.append]
        async with member:
            await member.lead()
            assert [status.role for status in told][-1] is Role.LEADER
            term = member.status().term
            assert (told[-1].term, told[-1].leader, told[-1].members) == (term, "a", ("a",))
            assert [past.term for past in told[-1].elections][-1] == term
            sample = member.metrics.registry.get_sample_value
            assert sample("dovetail_election_leading") == 1.0
            assert sample("dovetail_election_term") == float(term)
            assert sample("dovetail_election_leaderships_total") == 1.0


async def test_a_start_that_cannot_register_fails(tmp_path: Path) -> None:
    """S6: clearly, and nothing is left running."""
    async with MemoryCluster(tmp_path) as cluster:
        member = cluster.member("a")
        log = cluster.logs["a"]
        opening = log.open

        async def open_and_lose(on_entry: object) -> None:
            await opening(on_entry)  # type: ignore[arg-type]
            log.connected = False

        log.open = open_and_lose  # type: ignore[method-assign]
        tasks = asyncio.all_tasks()
        with pytest.raises(Unavailable, match="cannot register"):
            await member.start()
        assert asyncio.all_tasks() == tasks


async def test_who_waits_for_the_lead_hears_that_the_member_is_closed(tmp_path: Path) -> None:
    """S13, R5: a closed member never leads, and nobody waits for it for ever."""
    async with MemoryCluster(tmp_path) as cluster:
        await cluster.start_member("a")
        await cluster.wait_leader()
        second = cluster.member("b")
        await second.start()
        waiting = asyncio.ensure_future(second.lead())
        await asyncio.sleep(0)
        await second.close()
        with pytest.raises(Unavailable, match="is closed"):
            await asyncio.wait_for(waiting, 60)
        with pytest.raises(Unavailable, match="is closed"):
            await asyncio.wait_for(second.lead(), 60)


async def test_a_vote_that_cannot_be_kept_ends_the_member(tmp_path: Path) -> None:
    """S3: it must not speak any more, and says why."""
    async with MemoryCluster(tmp_path) as cluster:
        member = cluster.member("a")
        async with member:
            (tmp_path / "vote-a.draft").mkdir()
            with pytest.raises(Unavailable, match="has ended"):
                await asyncio.wait_for(member.lead(), 60)
            assert member.status().failure is not None
            assert not any(isinstance(record, Claim) for record, _ in cluster.log.records)


async def test_a_member_that_has_ended_is_not_woken_again(tmp_path: Path) -> None:
    """S3, R5: what is due stays due for ever then, and each turn of the loop would look at it."""
    async with MemoryCluster(tmp_path) as cluster:
        member = cluster.member("a")
        async with member:
            (tmp_path / "vote-a.draft").mkdir()
            with pytest.raises(Unavailable, match="has ended"):
                await asyncio.wait_for(member.lead(), 60)
            assert member._timer is not None
            assert not member._timer.is_set
            member.do(lambda now: member.election.on_source(alive=False, now_ms=now))
            assert not member._timer.is_set


async def test_a_leadership_ends_when_the_next_one_begins(tmp_path: Path) -> None:
    """S7, R5: whatever the election forgot to say, nobody waits for the end of the old one."""
    async with MemoryCluster(tmp_path) as cluster, cluster.member("a") as member:
        old = await member.lead()
        member._on_lead(Lead(Term(old.term + 1)))
        assert old.lost.is_set()
        assert (await member.lead()).term == old.term + 1


async def test_a_member_that_comes_back_keeps_its_vote(tmp_path: Path) -> None:
    """S3: the term on disk is not used again."""
    async with MemoryCluster(tmp_path) as cluster:
        async with cluster.member("a") as member:
            first = (await member.lead()).term
        assert VoteFile(tmp_path / "vote-a").read().term == first
        async with cluster.member("a") as member:
            assert (await member.lead()).term > first


@pytest.mark.parametrize("algorithm", [Algorithm.MAJORITY, Algorithm.BULLY])
async def test_a_second_process_under_the_same_name_is_noticed(
    tmp_path: Path, algorithm: Algorithm
) -> None:
    """S11, R5: two with one endpoint take turns to lead, and both found themselves well."""
    async with MemoryCluster(tmp_path, algorithm=algorithm) as cluster:
        alone = await cluster.start_member("a")
        await alone.lead()
        assert not alone.status().has_twin
        stream = await cluster.start_stream("a")
        await cluster.until(lambda: alone.status().has_twin and stream.member.status().has_twin)
        healthy, facts = stream.health()
        assert not healthy
        assert facts["problems"] == ["another process takes part as a"]
        assert alone.status().term > 1


def test_a_record_of_a_former_life_is_no_twin() -> None:
    """S11: it was on its way when its process died. A twin that is gone is forgotten."""
    name, life = MemberName("a"), Incarnation("a2")
    twins = Twins(name, life, timeout_ms=1_000)
    late = Claim(Term(1), name, Incarnation("a1"))
    for now_ms in (0.0, 5.0, 20_000.0, 20_900.0):
        twins.on_record(late, now_ms=now_ms)
        assert not twins.alive(now_ms=now_ms)
    for record in (Claim(Term(2), name, life), Leave(name, late.incarnation)):
        twins.on_record(record, now_ms=22_000.0)
        assert not twins.alive(now_ms=22_000.0)
    twins.on_record(late, now_ms=22_000.0)
    assert twins.alive(now_ms=30_000.0)
    assert not twins.alive(now_ms=33_000.0)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_missing_parts_are_named(algorithm: Algorithm) -> None:
    """S2: what an algorithm needs is asked for before anything starts."""
    with pytest.raises(InvalidSetting, match=f"{algorithm.name} needs"):
        ClusterMember(
            MemberName("a"),
            algorithm=algorithm,
            times=MemoryCluster(Path()).settings("a").times,
            shared_log=MemorySharedLog(MemoryLog()),
        )


async def test_coordinator_elects_by_lease_without_any_network(tmp_path: Path) -> None:
    """S5: two members that cannot see each other; the term comes from the service."""
    service = await EmbeddedCoordinator.open(tmp_path / "coordination.db", clock=SystemClock())
    cluster = MemoryCluster(tmp_path, algorithm=Algorithm.COORDINATOR)
    members = {}
    try:
        for name in ("a", "b"):
            settings = cluster.settings(name)
            make = campaigner_of(settings, service)
            assert make is not None
            members[name] = ClusterMember(
                MemberName(name),
                algorithm=Algorithm.COORDINATOR,
                times=settings.times,
                shared_log=MemorySharedLog(cluster.log),
                campaigner=make,
            )
            await members[name].start()
        cluster.members = members
        leader = await cluster.wait_leader()
        first = await members[leader].lead()
        other = "b" if leader == "a" else "a"
        assert members[other].leadership is None
        await members.pop(leader).close()
        second = await asyncio.wait_for(members[other].lead(), 60)
        assert second.term > first.term
    finally:
        for member in members.values():
            await member.close()
        await service.close()


async def test_a_slow_service_gives_one_lease_to_a_member_that_asks_again(tmp_path: Path) -> None:
    """S5, R5: the answer comes after the member gave up and stood anew; it leads under one lease,
    and when it has closed another one leads."""
    service = await EmbeddedCoordinator.open(tmp_path / "coordination.db", clock=SystemClock())
    held = _HeldTransactions(service)
    cluster = MemoryCluster(tmp_path, algorithm=Algorithm.COORDINATOR)

    def member(name: str, coordinator: Coordinator) -> ClusterMember:
        settings = cluster.settings(name)
        return ClusterMember(
            MemberName(name),
            algorithm=Algorithm.COORDINATOR,
            times=settings.times,
            shared_log=MemorySharedLog(cluster.log),
            # A lease that outlives the hiccups of a busy machine, and the test if it is leaked.
            campaigner=lambda me: Campaigner(
                coordinator,
                name="shared",
                environment="test",
                me=me,
                timeout_ms=60_000,
                clock=SystemClock(),
            ),
        )

    first, second = member("a", cast(Coordinator, held)), member("b", service)
    roles: list[Role] = []
    stood_again = asyncio.Event()

    def note(status: MemberStatus) -> None:
        roles.append(status.role)
        if roles.count(Role.CANDIDATE) >= 4:
            stood_again.set()

    first.on_change.append(note)
    try:
        await first.start()
        await asyncio.wait_for(stood_again.wait(), 60)
        held.pass_on.set()
        await asyncio.wait_for(first.lead(), 60)
        await first.close()
        await second.start()
        await asyncio.wait_for(second.lead(), 30)
    finally:
        held.pass_on.set()
        await first.close()
        await second.close()
        await service.close()


class _HeldTransactions:
    """A coordination service that answers no transaction until `pass_on` is set."""

    def __init__(self, service: EmbeddedCoordinator) -> None:
        self.pass_on = asyncio.Event()
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def transact(self, *given: Any, **named: Any) -> Any:
        await self.pass_on.wait()
        return await self._service.transact(*given, **named)


async def test_a_lost_lease_ends_the_leadership_of_its_holder(tmp_path: Path) -> None:
    """S5: the service is gone, and the leader stops by itself, in time."""
    service = await EmbeddedCoordinator.open(tmp_path / "coordination.db", clock=SystemClock())
    cluster = MemoryCluster(tmp_path, algorithm=Algorithm.COORDINATOR)
    settings = cluster.settings("a")
    make = campaigner_of(settings, service)
    member = ClusterMember(
        MemberName("a"),
        algorithm=Algorithm.COORDINATOR,
        times=settings.times,
        shared_log=MemorySharedLog(cluster.log),
        transport=MemoryTransport(cluster.network),
        campaigner=make,
    )
    async with member:
        leadership = await asyncio.wait_for(member.lead(), 60)
        await service.close()
        await asyncio.wait_for(leadership.lost.wait(), 60)
        assert isinstance(member._campaigner, Campaigner)


async def test_a_leader_trims_a_log_that_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: so that a new member has little to read; what was known stays known."""
    monkeypatch.setattr("dovetail.election.member.TRIM_RECORDS", 10)
    async with MemoryCluster(tmp_path) as cluster:
        member = await cluster.start_member("a")
        leadership = await member.lead()
        for offset in range(30):
            await leadership.confirm({0: offset})
        await cluster.until(lambda: cluster.log.first > 0)
        later = await cluster.start_member("b")
        assert later.shared_log.state.position == {0: 29}
        assert later.status().leader == "a"
