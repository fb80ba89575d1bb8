"""Dead letters by reason: what differs from letter to letter is left out."""

import pytest

from dovetail.admin.dead.letter import DeadLetter
from dovetail.admin.dead.reasons import GROUPS_MAX, by_reason, headline


def letter(number: int, reason: str, died_ms: int | None = None) -> DeadLetter:
    return DeadLetter(
        source="timeline",
        name="reminders",
        id=str(number),
        key=None,
        body=None,
        headers=[],
        reason=reason,
        attempts=1,
        died_ms=died_ms,
        detail=None,
    )


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("KeyError: 'order-17'", "KeyError: '…'"),
        ('no such customer "Ada"', "no such customer '…'"),
        ("order 4711 has 3 items", "order N has N items"),
        ("connect to 10.0.0.7:5432 failed", "connect to N failed"),
        ("0x7f3a9c at fault", "N at fault"),
        ("job 6f1c9d2e-11aa-4c1b-9d3e-aabbccddeeff lost", "job N lost"),
        ("HTTP/1.1 503 from api2", "HTTP/N N from api2"),
        ("", "no reason given"),
        ("don't", "don't"),
        ("<b>7</b>", "<b>N</b>"),
    ],
)
def test_a_headline_leaves_out_what_differs(reason: str, shown: str) -> None:
    """U5: two letters that died alike are one group, and words stay."""
    assert headline(reason) == shown


def test_the_most_frequent_reason_comes_first() -> None:
    """U5: with the first and last time, and the youngest letter as an example."""
    letters = [letter(n, f"KeyError: 'k-{n}'", died_ms=1_000 + n) for n in range(3)]
    letters += [letter(9, "timed out after 30 s"), letter(10, "timed out after 31 s", 500)]
    found = by_reason(letters)
    assert [(row.reason, row.letters) for row in found] == [
        ("KeyError: '…'", 3),
        ("timed out after N s", 2),
    ]
    assert (found[0].first_ms, found[0].last_ms, found[0].example_id) == (1_000, 1_002, "2")
    assert (found[1].first_ms, found[1].last_ms) == (500, 500)
    assert found[0].example == "KeyError: 'k-2'"
    assert by_reason([]) == []


def test_reasons_have_a_limit() -> None:
    """R3: of very many different reasons, and of a very long one."""
    words = [f"{'abcdefghij'[n % 10] * (n // 10 + 1)} failed" for n in range(GROUPS_MAX + 20)]
    assert len(by_reason([letter(n, word) for n, word in enumerate(words)])) == GROUPS_MAX
    (found,) = by_reason([letter(1, "x" * 100_000)])
    assert len(found.reason) == len(found.example) == 300
