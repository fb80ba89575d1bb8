"""Drift and degradations: when they begin, what they stop, and that they end by themselves."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from dovetail.errors import Throttled, Unavailable
from dovetail.timeline.engine.drift import Drift, Target
from dovetail.timeline.engine.health import (
    FORGET_MS,
    SAMPLE,
    Condition,
    Degradation,
    Gate,
    Health,
    StorageGate,
)
from dovetail.timeline.engine.late_histogram import LateHistogram

T = 1_000_000


def drift() -> Drift:
    return Drift(threshold_ms=1_000, fresh_ms=60_000)


def test_a_store_whose_clock_differs_makes_ours_the_wrong_one() -> None:
    """B15: beyond the threshold for certain, and said which way."""
    clocks = drift()
    clocks.on_answer(Target.STORAGE, "pg", sent_ms=T, theirs_ms=T + 30_005, received_ms=T + 10)
    verdict = clocks.verdict(now_ms=T)
    assert verdict.drifted
    assert "30000 ms behind storage" in verdict.reason
    assert clocks.drifted(Target.STORAGE, now_ms=T) == ["pg"]
    assert clocks.average_s(Target.STORAGE, now_ms=T) == pytest.approx(30.0)


def test_a_slow_answer_proves_nothing() -> None:
    """B15: the offset is known up to half the round trip."""
    clocks = drift()
    clocks.on_answer(Target.STORAGE, "pg", sent_ms=T, theirs_ms=T + 2_900, received_ms=T + 3_000)
    assert not clocks.verdict(now_ms=T).drifted
    clocks.on_answer(Target.STORAGE, "pg", sent_ms=T, theirs_ms=T + 1_500, received_ms=T + 4)
    assert clocks.verdict(now_ms=T).drifted


def test_coordination_speaks_where_nothing_is_known_of_the_store() -> None:
    """B15: most of its members, in one direction; against a store that agrees with us it is the
    one that is wrong, and counted."""
    clocks = drift()

    def etcd(name: str, offset_ms: float) -> None:
        clocks.on_offset(Target.COORDINATION, name, offset_ms=offset_ms, uncertain_ms=9, now_ms=T)

    etcd("a", -30_000)
    verdict = clocks.verdict(now_ms=T)
    assert verdict.drifted
    assert "30000 ms ahead of coordination's" in verdict.reason
    etcd("b", 0)
    assert not clocks.verdict(now_ms=T).drifted
    etcd("c", -31_000)
    assert clocks.verdict(now_ms=T).drifted
    clocks.on_answer(Target.STORAGE, "pg", sent_ms=T, theirs_ms=T, received_ms=T)
    assert not clocks.verdict(now_ms=T).drifted
    assert clocks.drifted(Target.COORDINATION, now_ms=T) == ["a", "c"]


def test_one_client_with_a_wrong_clock_stops_nobody_else() -> None:
    """B15, B18: it is counted; only most of several can outvote our clock, in one direction."""
    clocks = drift()

    def heard(name: str, offset_ms: float) -> None:
        clocks.on_offset(Target.CONSUMER, name, offset_ms=offset_ms, uncertain_ms=1, now_ms=T)

    heard("a", 30_000)
    assert not clocks.verdict(now_ms=T).drifted
    heard("b", -30_000)
    heard("c", 20_000)
    assert clocks.drifted(Target.CONSUMER, now_ms=T) == ["a", "b", "c"]
    heard("d", 0)
    assert not clocks.verdict(now_ms=T).drifted
    clocks.forget(Target.CONSUMER, "b")
    assert clocks.verdict(now_ms=T).drifted
    assert not clocks.verdict(now_ms=T + 60_001).drifted


@pytest.mark.parametrize("kind", [Target.CONSUMER, Target.PRODUCER, Target.BROKER])
@pytest.mark.parametrize("reference", [Target.STORAGE, Target.COORDINATION])
def test_nobody_outvotes_a_reference_that_finds_our_clock_right(
    kind: Target, reference: Target
) -> None:
    """F28: clients with wrong clocks, or forged offsets, halt nothing where the store or the
    coordination service answers; they are counted."""
    clocks = drift()
    clocks.on_offset(reference, "r", offset_ms=5, uncertain_ms=9, now_ms=T)
    for name in "abc":
        clocks.on_offset(kind, name, offset_ms=30_000, uncertain_ms=1, now_ms=T)
    assert not clocks.verdict(now_ms=T).drifted
    assert clocks.drifted(kind, now_ms=T) == ["a", "b", "c"]
    clocks.on_offset(reference, "r", offset_ms=30_000, uncertain_ms=9, now_ms=T)
    assert clocks.verdict(now_ms=T).drifted


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    """B15: a sample that cannot be true together with those before it takes their place, though
    they were more certain."""
    clocks = drift()
    for _ in range(8):
        clocks.on_offset(Target.STORAGE, "pg", offset_ms=3, uncertain_ms=1, now_ms=T)
    clocks.on_offset(Target.STORAGE, "pg", offset_ms=-30_000, uncertain_ms=40, now_ms=T)
    assert clocks.verdict(now_ms=T).drifted
    clocks.on_offset(Target.STORAGE, "pg", offset_ms=10, uncertain_ms=40, now_ms=T)
    assert not clocks.verdict(now_ms=T).drifted


def test_a_jump_of_our_own_clock_stops_pushes_before_anybody_was_asked() -> None:
    """B15: by the time that passed; a clock that is slewed is no jump."""
    health = Health(jump_ms_max=1_000)
    for second in range(10):
        health.on_clock(wall_ms=T + 1_010 * second, monotonic_ms=1_000.0 * second)
        assert health.may_push("t", now_ms=T)
    health.on_clock(wall_ms=T + 40_000, monotonic_ms=10_000.0)
    assert health.jumped
    assert not health.may_push("t", now_ms=T)
    with pytest.raises(Unavailable, match="jumped by 29910 ms"):
        health.check_dated_write()


def test_storage_that_fails_is_sampled_and_recovers() -> None:
    """B16: one in ten goes through, the rest is refused at once; three successes end it."""
    gate = StorageGate()
    for _ in range(10):
        gate.admit()
        gate.on_outcome(good=False)
    assert gate.failing
    tried = 0
    for _ in range(10 * SAMPLE):
        try:
            gate.admit()
        except Unavailable:
            continue
        tried += 1
    assert tried == 10
    for _ in range(3):
        gate.on_outcome(good=True)
    assert not gate.failing
    gate.admit()


def test_a_store_of_its_own_fails_alone() -> None:
    """B16, R8: the file of one timeline says nothing about those of others; a shared database
    does."""
    apart, together = Health(one_store=False), Health()
    for health in (apart, together):
        for _ in range(10):
            health.storage_of("bad").on_outcome(good=False)
    apart.storage_of("good").admit()
    with pytest.raises(Unavailable, match="one operation in 10"):
        apart.storage_of("bad").admit()
    with pytest.raises(Unavailable, match="one operation in 10"):
        together.storage_of("good").admit()
    assert apart.report(now_ms=T).unwell == (("bad", "the store of 'bad' keeps failing"),)
    assert apart.report(now_ms=T).of_all == []
    assert not together.report(now_ms=T).unwell
    assert together.report(now_ms=T).of_all == ["the timeline store keeps failing"]
    for health in (apart, together):
        assert health.gauges(now_ms=T)[Degradation.STORAGE] == 1
    apart.forget_timeline("bad")
    assert apart.report(now_ms=T).condition is Condition.HEALTHY


def test_a_few_failures_are_no_degradation() -> None:
    """B16: less than half, or too few to say."""
    gate = StorageGate()
    for number in range(200):
        gate.on_outcome(good=number % 3 > 0)
        assert not gate.failing
    few = StorageGate()
    for _ in range(9):
        few.on_outcome(good=False)
    assert not few.failing


def test_a_producer_that_fails_is_told_how_long_to_wait() -> None:
    """B16: longer each time; a request that works opens the gate."""
    gate = Gate()
    for _ in range(10):
        gate.on_outcome(good=False, now_ms=T)
    with pytest.raises(Throttled, match="try again in 1000 ms"):
        gate.check("app", T)
    gate.check("app", T + 1_000)
    gate.on_outcome(good=False, now_ms=T + 1_000)
    assert gate.closed_ms(T + 1_000) == 2_000
    gate.on_outcome(good=True, now_ms=T + 3_000)
    gate.on_outcome(good=False, now_ms=T + 3_001)
    assert not gate.closed_ms(T + 3_001)


def test_failing_consumers_stop_the_pushes_of_their_timeline_alone() -> None:
    """B16, B18: another timeline goes on."""
    health = Health()
    for _ in range(20):
        health.consumers("bad").on_outcome(good=False, now_ms=T)
        health.consumers("good").on_outcome(good=True, now_ms=T)
    assert not health.may_push("bad", now_ms=T)
    assert health.may_push("good", now_ms=T)
    assert health.may_push("never heard of", now_ms=T)
    assert health.gauges(now_ms=T)[Degradation.CONSUMERS] == 1
    assert health.may_push("bad", now_ms=T + 1_000)


def test_other_brokers_that_vanish_are_a_partition() -> None:
    """B16: unless they said goodbye."""
    peers = Health().peers
    peers.on_peers(0, now_ms=T)
    assert not peers.parted(T)
    peers.on_peers(4, now_ms=T)
    peers.on_peers(1, now_ms=T)
    assert peers.parted(T)
    peers.on_peers(3, now_ms=T)
    assert not peers.parted(T)
    for count in (2, 1, 0):
        peers.on_left()
        peers.on_peers(count, now_ms=T)
    peers.on_left()
    assert not peers.parted(T)


def test_brokers_that_stay_away_are_dead_and_forgotten() -> None:
    """B16: a survivor takes new consumers again, while its own lease at coordination is alive; the
    next that vanishes is judged by those that were left."""
    peers = Health().peers
    peers.on_peers(4, now_ms=T)
    peers.on_peers(1, now_ms=T)
    assert peers.parted(T + FORGET_MS - 1)
    assert not peers.parted(T + FORGET_MS)
    peers.on_peers(1, now_ms=T + FORGET_MS)
    assert not peers.parted(T + FORGET_MS)
    peers.on_peers(0, now_ms=T + FORGET_MS)
    assert peers.parted(T + FORGET_MS)
    assert not peers.parted(T + 2 * FORGET_MS)
    peers.cut_off = True
    assert peers.parted(T + 2 * FORGET_MS)
    assert "coordination" in peers.reason(T + 2 * FORGET_MS)


def test_busy_consumers_are_told_of_and_stop_nobody_else() -> None:
    """B14, B16, B18: those have no credit, so nothing is pushed to them; the others go on."""
    health = Health()
    health.on_busy("slow", most=True)
    assert health.may_push("slow", now_ms=T)
    assert health.gauges(now_ms=T)[Degradation.CONSUMERS] == 1
    report = health.report(now_ms=T)
    assert report.reasons == ((Degradation.CONSUMERS, "most consumers of 'slow' are busy"),)
    assert report.of_all == []
    health.on_busy("slow", most=False)
    assert health.report(now_ms=T).condition is Condition.HEALTHY


def test_busy_consumers_stop_their_timeline_where_it_is_set_so() -> None:
    """B16, B18: that timeline alone, and until they have room."""
    health = Health()
    health.on_busy("slow", most=True, stop=True)
    assert not health.may_push("slow", now_ms=T)
    assert health.may_push("other", now_ms=T)
    text = "most consumers of 'slow' are busy; nothing is pushed"
    assert health.report(now_ms=T).reasons == ((Degradation.CONSUMERS, text),)
    health.on_busy("slow", most=False, stop=True)
    assert health.may_push("slow", now_ms=T)
    health.on_busy("slow", most=True, stop=True)
    health.forget_timeline("slow")
    assert health.may_push("slow", now_ms=T)


def test_the_report_names_every_reason() -> None:
    """B15, B16: healthy, degraded with reasons, inactive; a drifted broker pushes nothing."""
    health = Health()
    assert health.report(now_ms=T).condition is Condition.HEALTHY
    health.drift_reason = "the clock is 30000 ms behind"
    for _ in range(20):
        health.storage.on_outcome(good=False)
        health.producer("app").on_outcome(good=False, now_ms=T)
    health.peers.on_peers(3, now_ms=T)
    health.peers.on_peers(0, now_ms=T)
    report = health.report(now_ms=T)
    assert report.condition is Condition.DEGRADED
    assert {reason for reason, _ in report.reasons} == set(Degradation) - {Degradation.CONSUMERS}
    assert not health.may_push("any", now_ms=T)
    with pytest.raises(Unavailable, match="30000 ms behind"):
        health.check_dated_write()
    assert health.gauges(now_ms=T)[Degradation.DRIFT] == 1
    health.inactive = True
    assert health.report(now_ms=T).condition is Condition.INACTIVE


def test_lateness_is_counted_as_the_library_would() -> None:
    """B17, B7: a batch at a time, and the same figures in Prometheus' form."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    late = LateHistogram("late_seconds", "How late.", bounds_s=(0.001, 0.01, 5), tags={"zone": "a"})
    ours.register(late)
    plain = Histogram(
        "late_seconds", "How late.", ["zone", "timeline"], buckets=(0.001, 0.01, 5), registry=theirs
    )
    values_ms = [-3.0, 0.0, 0.5, 1.0, 1.5, 10.0, 4_999.0, 5_000.0, 9_000.0]
    late.add("t", values_ms[:4])
    late.add("t", values_ms[4:])
    for each_ms in values_ms:
        plain.labels(zone="a", timeline="t").observe(max(0.0, each_ms) / 1000)

    def lines(registry: CollectorRegistry) -> list[str]:
        text = generate_latest(registry).decode()
        return sorted(line for line in text.splitlines() if "_created" not in line)

    def labels_apart(line: str) -> tuple[str, ...]:
        return tuple(sorted(line.replace("{", ",").replace("}", ",").split(",")))

    assert sorted(map(labels_apart, lines(ours))) == sorted(map(labels_apart, lines(theirs)))
    late.forget("t")
    assert "zone" not in generate_latest(ours).decode()
