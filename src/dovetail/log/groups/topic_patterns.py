"""The topics that a pattern matches, in time that grows with the name, not with the pattern.

A consumer of the new protocol may subscribe to a regular expression, which the broker has to match.
Kafka uses RE2: no lookaround and no backreferences, so that no expression can keep a broker busy.
Python's engine backtracks, so it only parses the expression; our matcher follows all alternatives
at once and remembers each step that it has made (a lazy automaton). A pattern must match the whole
name.
"""

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from dovetail.errors import InvalidInput

#: Longest expression, and most states that it may come to: `a{1000}` has a thousand.
_PATTERN_MAX = 1000
_STATES_MAX = 1000

#: States in all steps that are remembered, some 50 bytes each; further steps are found anew.
_REMEMBERED_MAX = 100_000

#: What Python itself reads expressions with; it has no public name.
sre: Any = import_module("re._constants")
_parse: Any = import_module("re._parser").parse

_Test = Callable[[str], bool]
_Set = frozenset[int]


class TopicPattern:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        """Raises `InvalidInput` if it is no expression, or needs more than one pass."""
        if len(text) > _PATTERN_MAX:
            raise InvalidInput(
                f"the pattern has {len(text)} characters, at most {_PATTERN_MAX} are allowed"
            )
        try:
            parsed = _parse(_as_python(text))
        except (re.error, RecursionError, OverflowError, ValueError) as error:
            raise InvalidInput(
                f"the pattern {text[:80]!r} is not a regular expression: {error}"
            ) from error
        if parsed.state.flags & ~(re.UNICODE | re.IGNORECASE | re.DOTALL):
            raise InvalidInput(f"the pattern {text[:80]!r} uses flags other than i and s")

        #: Of each state: what leads to the next one, and which are reached without a character.
        self._tests: list[tuple[_Test, int] | None] = []
        self._free: list[list[int]] = []
        self._anchors: list[object] = []
        self._folds = bool(parsed.state.flags & re.IGNORECASE)
        self._end = self._state()
        try:
            start = self._sequence(list(parsed), self._end)
        except RecursionError as error:
            raise InvalidInput(f"the pattern {text[:80]!r} is nested too deeply") from error
        self._start = self._closure({start}, at_start=True)
        self._steps: dict[tuple[_Set, str], _Set] = {}
        self._remembered = 0

    def among(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the names that match. The automaton built meanwhile is dropped."""
        found = frozenset(filter(self.matches, names))
        self._steps.clear()
        self._remembered = 0
        return found

    def matches(self, name: str) -> bool:
        """Whether the whole name fits."""
        states = self._start
        for character in name:
            states = self._step(states, character)
            if not states:
                return False
        return self._end in self._closure(set(states), at_end=True, at_start=not name)

    def _step(self, states: _Set, character: str) -> _Set:
        found = self._steps.get((states, character))
        if found is None:
            reached = set()
            for state in states:
                test = self._tests[state]
                if test is not None and test[0](character):
                    reached.add(test[1])
            found = self._closure(reached)
            if self._remembered + len(found) <= _REMEMBERED_MAX:
                self._remembered += 1 + len(found)
                self._steps[states, character] = found
        return found

    def _closure(self, states: set[int], *, at_start: bool = False, at_end: bool = False) -> _Set:
        """The states with all that are reached without a character."""
        found, left = set(states), list(states)
        while left:
            state = left.pop()
            anchor = self._anchors[state]
            if anchor == sre.AT_BEGINNING and not at_start:
                continue
            if anchor == sre.AT_END and not at_end:
                continue
            new = [one for one in self._free[state] if one not in found]
            found.update(new)
            left += new
        return frozenset(found)

    # From the expression to states, from its end to its beginning

    def _state(self, free: list[int] | None = None, test: tuple[_Test, int] | None = None) -> int:
        if len(self._tests) >= _STATES_MAX:
            raise InvalidInput(f"the pattern is too large: more than {_STATES_MAX} states")
        self._tests.append(test)
        self._free.append(free or [])
        self._anchors.append(None)
        return len(self._tests) - 1

    def _sequence(self, items: list[Any], following: int) -> int:
        for item in reversed(items):
            following = self._item(item, following)
        return following

    def _item(self, item: tuple[Any, Any], following: int) -> int:
        kind, what = item
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._state(test=(_test(kind, what, folds=self._folds), following))
        if kind == sre.SUBPATTERN:
            _, add, remove, inner = what
            if add or remove:
                raise InvalidInput("flags inside a pattern are not supported")
            return self._sequence(list(inner), following)
        if kind == sre.BRANCH:
            return self._state([self._sequence(list(one), following) for one in what[1]])
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = what
            return self._repeat(least, most, list(inner), following)
        if kind == sre.AT and what in (sre.AT_BEGINNING, sre.AT_END):
            state = self._state([following])
            self._anchors[state] = what
            return state
        raise InvalidInput(f"a pattern cannot use {str(kind).lower()}")

    def _repeat(self, least: int, most: Any, items: list[Any], following: int) -> int:
        if most == sre.MAXREPEAT:
            again = self._state()
            self._free[again] = [self._sequence(items, again), following]
            start = again
        else:
            start = following
            for _ in range(int(most) - least):
                start = self._state([self._sequence(items, start), following])
        for _ in range(least):
            before, start = start, self._sequence(items, start)
            if start == before:  # Nothing, however often: `(){4000000000}` would take minutes.
                break
        return start


def _as_python(text: str) -> str:
    """What RE2 writes otherwise than Python: quoted text, and classes by their names."""
    made: list[str] = []
    at, inside = 0, False
    while at < len(text):
        found, following = text[at], at + 1
        if text.startswith("\\Q", at):
            end = text.find("\\E", at)
            found, following = re.escape(text[at + 2 : end if end >= 0 else None]), end + 2
            following = following if end >= 0 else len(text)
        elif found == "\\":
            found, following = text[at : at + 2], at + 2
        elif inside and text.startswith("[:", at) and (end := text.find(":]", at)) >= 0:
            found, following = _named(text[at + 2 : end]), end + 2
        elif inside and found == "[":
            found = "\\["
        elif inside:
            inside = found != "]"
        elif found == "[":
            # A bracket that closes nothing is one of the class.
            begin = re.match(r"\[\^?\]?", text[at:])
            found, inside = begin[0] if begin else found, True
            following = at + len(found)
        made.append(found)
        at = following
    return "".join(made)


def _named(name: str) -> str:
    if name not in _CLASSES:
        raise InvalidInput(f"a pattern cannot use the class [:{name[:20]}:]")
    return _CLASSES[name]


def _test(kind: Any, what: Any, *, folds: bool) -> _Test:
    if kind == sre.ANY:
        return lambda character: character != "\n"
    if kind == sre.IN:
        negated = bool(what) and what[0][0] == sre.NEGATE
        parts = [_part(*one) for one in what[negated:]]
    else:
        negated, parts = kind == sre.NOT_LITERAL, [chr(what).__eq__]
    if folds:
        return lambda character: (
            negated
            != any(part(case) for part in parts for case in (character.lower(), character.upper()))
        )
    return lambda character: any(part(character) for part in parts) != negated


def _part(kind: Any, what: Any) -> _Test:
    if kind == sre.LITERAL:
        return chr(what).__eq__
    if kind == sre.RANGE:
        return lambda character: what[0] <= ord(character) <= what[1]
    classes: dict[Any, _Test] = {
        sre.CATEGORY_DIGIT: lambda c: c in _DIGITS,
        sre.CATEGORY_NOT_DIGIT: lambda c: c not in _DIGITS,
        sre.CATEGORY_SPACE: lambda c: c in _SPACES,
        sre.CATEGORY_NOT_SPACE: lambda c: c not in _SPACES,
        sre.CATEGORY_WORD: lambda c: c == "_" or (c.isascii() and c.isalnum()),
        sre.CATEGORY_NOT_WORD: lambda c: not (c == "_" or (c.isascii() and c.isalnum())),
    }
    if kind == sre.CATEGORY and what in classes:
        return classes[what]
    raise InvalidInput(f"a pattern cannot use {str(kind).lower()} in a class")


#: RE2's names, as they stand in a class of Python's.
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t-\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_DIGITS = frozenset("0123456789")
_SPACES = frozenset(" \t\n\r\f\v")
