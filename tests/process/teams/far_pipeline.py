"""A pipeline that is run on a cluster whose executors have nothing of it."""

from typing import TypedDict

import dovetail
from dovetail.spark.records import COMPILED
from dovetail.teams import Pipeline, Team


class Asked(TypedDict):
    n: int


class Found(Asked):
    """A TypedDict that inherits from another does not survive pickling by value."""

    compiled: bool
    where: str


def look(asked: Asked) -> Found:
    return {"n": asked["n"], "compiled": COMPILED, "where": dovetail.__file__}


def is_even(found: Found) -> bool:
    return found["n"] % 2 == 0


def same(found: Found) -> Found:
    return found


_look, _even, _odd = Team("look", look, workers=2), Team("even", same), Team("odd", same)
_look.route_to(is_even, _even, _odd)
far = Pipeline("far", _look, _even, _odd)
