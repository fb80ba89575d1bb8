"""The delivery, step by step: what is handed over, when, and what counts as done."""

from typing import NamedTuple

from dovetail.election import Term
from dovetail.stream.delivery import Delivery, FindEnd, Handle, Phase, Seek, WriteReport
from dovetail.stream.settings import Takeover


class Place(NamedTuple):
    lane: int
    offset: int


def places(*offsets: int) -> list[Place]:
    return [Place(0, offset) for offset in offsets]


def resuming(committed: int = 5, **given: int) -> Delivery[Place]:
    delivery: Delivery[Place] = Delivery(Takeover.RESUME, given.get("batch", 10))
    steps = delivery.on_lead(Term(1), {0: committed})
    assert steps == [
        Seek({0: committed}, delivery.generation),
        WriteReport(Term(1), {0: committed}),
    ]
    assert delivery.on_reported(Term(1), accepted=True) == []
    return delivery


def test_an_event_waits_for_a_report_that_was_written_after_it_came() -> None:
    """S8: report first, then the handler, then the next report with what was handled."""
    delivery = resuming()
    steps = delivery.on_events(places(5, 6), generation=delivery.generation)
    assert steps == [WriteReport(Term(1), {0: 5})]
    assert delivery.on_reported(Term(1), accepted=True) == [Handle(Term(1), tuple(places(5, 6)))]
    assert delivery.on_handled(Term(1), places(5, 6)) == [WriteReport(Term(1), {0: 7})]
    assert delivery.on_reported(Term(1), accepted=True) == []
    assert delivery.phase is Phase.READING


def test_what_came_after_the_report_waits_for_the_next_one() -> None:
    """S8: one report commits the last batch and confirms the next."""
    delivery = resuming()
    delivery.on_events(places(5), generation=delivery.generation)
    assert delivery.on_events(places(6), generation=delivery.generation) == []
    assert delivery.on_reported(Term(1), accepted=True) == [Handle(Term(1), tuple(places(5)))]
    assert delivery.on_handled(Term(1), places(5)) == [WriteReport(Term(1), {0: 6})]
    assert delivery.on_reported(Term(1), accepted=True) == [Handle(Term(1), tuple(places(6)))]


def test_a_report_that_was_not_stored_is_written_again() -> None:
    """S9: nothing is handed over before one is accepted."""
    delivery = resuming()
    delivery.on_events(places(5), generation=delivery.generation)
    again = delivery.on_reported(Term(1), accepted=False)
    assert again == [WriteReport(Term(1), {0: 5})]


def test_skip_looks_for_the_end_after_the_claim() -> None:
    """S9: and begins there, whatever was committed."""
    delivery: Delivery[Place] = Delivery(Takeover.SKIP, 10)
    assert delivery.on_lead(Term(2), {0: 3}) == [FindEnd()]
    steps = delivery.on_end(Term(2), {0: 40})
    assert steps[0] == Seek({0: 40}, delivery.generation)


def test_an_end_that_was_asked_for_in_an_earlier_term_is_not_believed() -> None:
    """S9: it may lie before what the last leader handled."""
    delivery: Delivery[Place] = Delivery(Takeover.SKIP, 10)
    delivery.on_lead(Term(2), {})
    delivery.on_lost()
    delivery.on_lead(Term(4), {})
    assert delivery.on_end(Term(2), {0: 1}) == []


def test_events_of_an_earlier_reading_are_dropped() -> None:
    """S9: what a follower has read is not handed over when it leads."""
    delivery = resuming()
    assert delivery.on_events(places(5), generation=delivery.generation - 1) == []
    assert delivery.waiting_count == 0


def test_a_source_that_repeats_itself_is_not_believed() -> None:
    """S1: each event once in a leadership, and in order."""
    delivery = resuming()
    delivery.on_events(places(5, 6), generation=delivery.generation)
    delivery.on_events(places(5, 6, 7), generation=delivery.generation)
    assert delivery.waiting_count == 3
    delivery.on_events(places(7, 8), generation=delivery.generation)
    assert delivery.waiting_count == 4


def test_nothing_goes_on_after_the_leadership() -> None:
    """S8: answers that come late change nothing."""
    delivery = resuming()
    delivery.on_events(places(5), generation=delivery.generation)
    delivery.on_lost()
    assert delivery.on_reported(Term(1), accepted=True) == []
    assert delivery.on_handled(Term(1), places(5)) == []
    assert delivery.handled == {0: 5}


def test_what_ended_of_a_batch_is_reported_and_the_rest_goes_on() -> None:
    """S9: a slow handler does not keep the position back."""
    delivery = resuming(batch=3)
    delivery.on_events(places(5, 6, 7, 8), generation=delivery.generation)
    assert delivery.on_reported(Term(1), accepted=True) == [Handle(Term(1), tuple(places(5, 6, 7)))]
    assert delivery.on_handled(Term(1), places(5)) == [WriteReport(Term(1), {0: 6})]
    assert delivery.on_reported(Term(1), accepted=True) == [Handle(Term(1), tuple(places(6, 7, 8)))]
