"""Who has which record of a shared partition: every step, the limits, and against a model."""

import random

import pytest

from dovetail.log.share.share_partition import SharePartition
from dovetail.log.share.types import (
    Acknowledge,
    Acknowledgement,
    Acquired,
    Batch,
    Mark,
    ShareCounts,
    ShareError,
    ShareSettings,
)

SETTINGS = ShareSettings(lock_ms=1000, deliveries_max=3, in_flight_max=20)
ACCEPT, RELEASE, REJECT = (int(Acknowledge[name]) for name in ("ACCEPT", "RELEASE", "REJECT"))
GAP, RENEW = int(Acknowledge.GAP), int(Acknowledge.RENEW)


def made(settings: ShareSettings = SETTINGS, start: int = 0) -> SharePartition:
    return SharePartition(start, (), settings)


def take(
    share: SharePartition,
    member: str,
    *batches: tuple[int, int],
    most: int = 100,
    strict: bool = False,
    now_ms: float = 0,
    skip: bool = False,
) -> list[Acquired]:
    offset = share.next_offset
    assert offset is not None
    return share.acquire(
        member,
        offset,
        [Batch(first, last, skip) for first, last in batches],
        records_max=most,
        strict=strict,
        now_ms=now_ms,
    )


def say(
    share: SharePartition,
    member: str,
    first: int,
    last: int,
    *kinds: int,
    now_ms: float = 0,
) -> ShareError:
    said = [Acknowledgement(first, last, kinds)]
    return share.acknowledge(member, said, now_ms=now_ms)


def again(share: SharePartition) -> SharePartition:
    """As the next owner sees it."""
    start, spans = share.stored()
    return SharePartition(start, spans, share.settings)


def test_a_record_has_one_lock() -> None:
    """K10: what one member has, no other can have or decide; what it accepts is done with."""
    share = made()
    assert take(share, "a", (0, 4)) == [(0, 4, 1)]
    assert take(share, "b", (0, 4), (5, 9)) == [(5, 9, 1)]
    assert say(share, "b", 0, 4, ACCEPT) is ShareError.INVALID_RECORD_STATE
    assert say(share, "b", 3, 6, ACCEPT) is ShareError.INVALID_RECORD_STATE
    assert say(share, "a", 0, 4, ACCEPT) is ShareError.NONE
    assert share.start == 5
    assert say(share, "a", 0, 4, ACCEPT) is ShareError.INVALID_RECORD_STATE
    assert say(share, "b", 5, 9, ACCEPT, ACCEPT, RELEASE, REJECT, GAP) is ShareError.NONE
    assert share.start == 7
    assert share.stored() == (7, ((1, 0, 1), (2, 4, 1)))
    assert take(share, "a", (5, 9)) == [(7, 7, 2)]


def test_a_lock_ends_and_is_renewed() -> None:
    """K10: when it is over others can have the record; renewed in time it is not."""
    share = made()
    take(share, "a", (0, 1))
    assert share.next_deadline_ms == 1000
    assert say(share, "a", 0, 0, RENEW, now_ms=900) is ShareError.NONE
    assert not share.dirty
    assert share.expire(now_ms=1000)
    assert share.dirty
    assert take(share, "b", (0, 1), now_ms=1000) == [(1, 1, 2)]
    assert say(share, "a", 0, 1, ACCEPT, now_ms=1000) is ShareError.INVALID_RECORD_STATE
    assert say(share, "a", 0, 0, ACCEPT, now_ms=1899) is ShareError.NONE
    # The lock counts at the moment of the acknowledgement, also if no timer has rung.
    assert say(share, "b", 1, 1, ACCEPT, now_ms=2000) is ShareError.INVALID_RECORD_STATE


def test_renewing_can_be_switched_off() -> None:
    """K10: share.renew.acknowledge.enable=false refuses it, and changes nothing."""
    share = made(ShareSettings(renews=False))
    take(share, "a", (0, 1))
    assert say(share, "a", 0, 1, ACCEPT, RENEW) is ShareError.RENEW_OFF
    assert [span.mark for span in share.spans()] == [Mark.ACQUIRED]


def test_a_record_is_given_up_at_the_limit() -> None:
    """K10: after so many deliveries, released or timed out; and not by the owner's death."""
    share = made()
    for count in (1, 2, 3):
        assert take(share, "a", (0, 0)) == [(0, 0, count)]
        if count < 3:
            assert say(share, "a", 0, 0, RELEASE) is ShareError.NONE
    assert share.stored() == (0, ((1, 0, 2),))
    assert take(again(share), "b", (0, 0)) == [(0, 0, 3)]
    share.expire(now_ms=1000)
    assert share.start == 1
    assert share.next_offset == 1


def test_dead_letters_come_before_the_end() -> None:
    """K10: a record that is given up waits for its dead letter, through a change of owners."""
    share = made(ShareSettings(deliveries_max=1, dead_letters="dlq.t"))
    take(share, "a", (0, 3))
    say(share, "a", 0, 1, REJECT)
    say(share, "a", 2, 2, RELEASE)
    say(share, "a", 3, 3, ACCEPT)
    assert [(one.first, one.last) for one in share.dying()] == [(0, 1), (2, 2)]
    later = again(share)
    assert later.start == 0
    assert [(one.first, one.last) for one in later.dying()] == [(0, 1), (2, 2)] or [
        (one.first, one.last) for one in later.dying()
    ] == [(0, 2)]
    later.buried(0, 2)
    assert later.start == 4


def test_what_becomes_of_records_is_counted() -> None:
    """K10: acquired, accepted, released, rejected, locks that ended, the limit, dead letters; what
    is refused counts for nothing, and a gap and a renewal are neither."""
    counts = ShareCounts()
    settings = ShareSettings(lock_ms=1000, deliveries_max=2, dead_letters="dlq.t")
    share = SharePartition(0, (), settings, counts)
    take(share, "a", (0, 9))
    assert say(share, "a", 0, 6, ACCEPT, ACCEPT, RELEASE, REJECT, REJECT, GAP, RENEW) is (
        ShareError.NONE
    )
    assert say(share, "b", 7, 7, ACCEPT) is ShareError.INVALID_RECORD_STATE
    assert share.release_all("a")  # 6 to 9, unseen.
    assert counts == ShareCounts(acquired=10, accepted=2, released=5, rejected=2)

    take(share, "b", (2, 2), now_ms=10)
    share.expire(now_ms=1010)
    assert (counts.expired, counts.exhausted) == (1, 1)
    share.buried(2, 4)
    assert counts == ShareCounts(11, 2, 5, 2, expired=1, exhausted=1, dead_letters=3)


def test_a_closed_session_gives_back_unseen_records() -> None:
    """K10: they are available at once. The delivery counts, as with Kafka: a record on which every
    member fails, and closes, is given up at the limit."""
    share = made()
    for delivery in (1, 2, 3):
        assert take(share, "a", (0, 4)) == [(0, 4, delivery)]
        take(share, "b", (5, 9))
        assert share.release_all("a")
        assert not share.release_all("a")
    assert take(share, "a", (0, 4)) == []
    assert share.start == 5


def test_the_room_in_flight_is_bounded() -> None:
    """K10: by whole batches, or exactly if the member asks so."""
    share = made()
    assert take(share, "a", (0, 14)) == [(0, 14, 1)]
    assert take(share, "a", (15, 29)) == [(15, 29, 1)]
    assert share.next_offset is None
    say(share, "a", 0, 14, ACCEPT)
    assert share.next_offset == 30

    exact = made()
    assert take(exact, "a", (0, 29), most=7, strict=True) == [(0, 6, 1)]
    assert take(exact, "a", (0, 29), most=50, strict=True) == [(7, 19, 1)]
    assert exact.next_offset is None
    say(exact, "a", 3, 8, RELEASE)
    assert take(exact, "b", (0, 29), most=4, strict=True) == [(3, 6, 2)]


def test_gaps_of_a_compacted_log_are_passed_over() -> None:
    """K10, L17: offsets that the log does not have hold nothing up, also if they go meanwhile."""
    share = made()
    assert take(share, "a", (3, 4), (8, 9)) == [(3, 4, 1), (8, 9, 1)]
    assert share.start == 3
    say(share, "a", 3, 4, RELEASE)
    say(share, "a", 8, 9, RELEASE)
    assert take(share, "a", (8, 9), (12, 12)) == [(8, 9, 2), (12, 12, 1)]
    say(share, "a", 8, 9, ACCEPT)
    say(share, "a", 12, 12, GAP)
    assert share.start == share.end == 13


def test_what_nobody_is_to_see_is_skipped() -> None:
    """K10, K8: markers, and records of aborted transactions."""
    share = made()
    offset = share.next_offset
    assert offset == 0
    batches = [Batch(0, 4, skip=True), Batch(5, 6), Batch(7, 7, skip=True)]
    found = share.acquire("a", 0, batches, records_max=10, strict=False, now_ms=0)
    assert found == [(5, 6, 1)]
    assert share.start == 5
    say(share, "a", 5, 6, ACCEPT)
    assert share.start == 8


def test_the_log_begins_later() -> None:
    """K10, L11: what retention took is forgotten, and no mistake of a member."""
    share = made()
    take(share, "a", (0, 9))
    assert share.trim(5)
    assert share.start == 5
    assert say(share, "a", 0, 9, ACCEPT) is ShareError.NONE
    assert share.start == 10
    assert share.trim(40)
    assert share.next_offset == 40
    assert not share.trim(40)


@pytest.mark.parametrize(
    ("first", "last", "kinds"),
    [
        (5, 4, (1,)),
        (0, 4, ()),
        (0, 4, (1, 1)),
        (0, 1, (5,)),
        (0, 1, (-1,)),
        (-5, -1, (1,)),
    ],
)
def test_what_does_not_fit_changes_nothing(first: int, last: int, kinds: tuple[int, ...]) -> None:
    """K10: one batch that is wrong, and nothing of the request is taken."""
    share = made()
    take(share, "a", (0, 9))
    said = [Acknowledgement(0, 1, (ACCEPT,)), Acknowledgement(first, last, kinds)]
    assert share.acknowledge("a", said, now_ms=0) is ShareError.INVALID_REQUEST
    assert [(span.first, span.last) for span in share.spans()] == [(0, 9)]
    assert not share.dirty
    far = [Acknowledgement(0, 2**63 - 1, (ACCEPT,))]
    assert share.acknowledge("a", far, now_ms=0) is ShareError.INVALID_RECORD_STATE


def test_any_order_of_events_agrees_with_a_model() -> None:
    """K10: against a table of single records, over random events and changes of owners."""
    for seed in range(60):
        chance = random.Random(seed)
        share = made(ShareSettings(lock_ms=1000, deliveries_max=3, in_flight_max=30))
        model = Model()
        now = 0.0
        for _ in range(150):
            now += chance.choice((0, 10, 400))
            share = model.step(share, chance, now)
            model.compare(share, f"seed={seed}")


class Model:
    """Each record by itself: what the spans must say."""

    END = 80

    def __init__(self) -> None:
        self.marks = [Mark.AVAILABLE] * self.END
        self.counts = [0] * self.END
        self.members = [""] * self.END
        self.locks = [0.0] * self.END

    def step(self, share: SharePartition, chance: random.Random, now: float) -> SharePartition:
        self.expire(now)
        share.expire(now_ms=now)
        event = chance.choice(("take", "take", "say", "say", "close", "owner"))
        member = chance.choice("abc")
        if event == "take":
            self.take(share, chance, member, now)
        elif event == "say":
            self.say(share, chance, member, now)
        elif event == "close":
            share.release_all(member)
            for at in self.held(member):
                self.release(at)
        else:
            share = again(share)
            for at, mark in enumerate(self.marks):
                if mark is Mark.ACQUIRED:
                    self.marks[at] = Mark.AVAILABLE
                    self.counts[at] = min(self.counts[at], 2)
        return share

    def take(self, share: SharePartition, chance: random.Random, member: str, now: float) -> None:
        offset = share.next_offset
        if offset is None or offset >= self.END:
            return
        size = chance.randint(1, 7)
        first = offset // size * size
        batches = [
            Batch(at, min(at + size, self.END) - 1)
            for at in range(first, min(first + 4 * size, self.END), size)
        ]
        most, strict = chance.randint(1, 12), chance.random() < 0.5
        got = share.acquire(member, offset, batches, records_max=most, strict=strict, now_ms=now)
        records = [at for one in got for at in range(one.first, one.last + 1)]
        assert records == sorted(set(records))
        if strict:
            assert len(records) <= most
        for one in got:
            for at in range(one.first, one.last + 1):
                assert self.marks[at] is Mark.AVAILABLE, f"{at} was {self.marks[at]}"
                self.marks[at], self.members[at] = Mark.ACQUIRED, member
                self.counts[at] += 1
                self.locks[at] = now + 1000
                assert one.deliveries == self.counts[at]

    def say(self, share: SharePartition, chance: random.Random, member: str, now: float) -> None:
        first = chance.randrange(max(share.start - 2, 0), max(share.end, share.start + 1))
        last = first + chance.randint(0, 6)
        kinds = tuple(chance.choice((0, 1, 1, 2, 3, 4)) for _ in range(last - first + 1))
        if chance.random() < 0.5:
            kinds = kinds[:1]
        mine = all(
            at < self.END and self.marks[at] is Mark.ACQUIRED and self.members[at] == member
            for at in range(first, last + 1)
        )
        error = share.acknowledge(member, [Acknowledgement(first, last, kinds)], now_ms=now)
        assert (error is ShareError.NONE) == mine
        if not mine:
            return
        for at in range(first, last + 1):
            kind = kinds[0] if len(kinds) == 1 else kinds[at - first]
            if kind == RENEW:
                self.locks[at] = now + 1000
            elif kind == RELEASE:
                self.release(at)
            else:
                self.marks[at] = Mark.ACKNOWLEDGED if kind == ACCEPT else Mark.ARCHIVED

    def release(self, at: int) -> None:
        given_up = self.counts[at] >= 3
        self.marks[at] = Mark.ARCHIVED if given_up else Mark.AVAILABLE

    def held(self, member: str) -> list[int]:
        return [
            at
            for at, mark in enumerate(self.marks)
            if mark is Mark.ACQUIRED and self.members[at] == member
        ]

    def expire(self, now: float) -> None:
        for at, mark in enumerate(self.marks):
            if mark is Mark.ACQUIRED and self.locks[at] <= now:
                self.release(at)

    def compare(self, share: SharePartition, seed: str) -> None:
        done = (Mark.ACKNOWLEDGED, Mark.ARCHIVED)
        assert all(mark in done for mark in self.marks[: share.start]), seed
        expected = share.start
        for span in share.spans():
            assert span.first == expected, seed
            expected = span.last + 1
            for at in range(span.first, span.last + 1):
                assert span.mark is self.marks[at], f"{seed}: record {at}"
                if span.mark not in done:
                    assert span.count == self.counts[at], f"{seed}: record {at}"
        assert all(count == 0 for count in self.counts[expected:]), seed


def test_a_batch_is_larger_than_the_room_in_flight() -> None:
    """K10, R8: what is remembered of single records is bounded, whatever a producer batches; the
    rest of the batch follows when there is room."""
    partition = SharePartition(0, (), ShareSettings(in_flight_max=100))
    given = {"records_max": 500, "strict": False, "now_ms": 0.0}
    assert partition.acquire("a", 0, [Batch(0, 999), Batch(1_000, 1_999)], **given) == [
        Acquired(0, 99, 1)
    ]
    assert partition.next_offset is None
    done = [Acknowledgement(0, 39, (ACCEPT,))]
    assert partition.acknowledge("a", done, now_ms=1) is ShareError.NONE
    assert partition.next_offset == 100
    assert partition.acquire("a", 100, [Batch(0, 999)], **given) == [Acquired(100, 199, 1)]
    assert partition.next_offset is None
