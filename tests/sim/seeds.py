"""How many seeds a simulation runs, and what it says when one of them fails.

    SIM_SECONDS=1     by default: seeds for so many seconds of the processor, but never too few
    SIM_SEEDS=20000   so many seeds, however long it takes: `make sim`
    SIM_SEED=17       this one alone, again

Seeds count up from 0, so a seed that failed fails again.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_Result = TypeVar("_Result")

_SECONDS = float(os.environ.get("SIM_SECONDS", "1"))
_SEEDS = int(os.environ.get("SIM_SEEDS", "0"))
_ALONE = os.environ.get("SIM_SEED")

#: Seeds of a scene, which has one fault at a set time, and so little that could differ.
SCENE_SEEDS = int(os.environ.get("SCENE_SEEDS", "1"))


def run_seeds(run: Callable[[int], _Result], *, least: int) -> list[_Result]:
    """Runs a simulation with as many seeds as there is time for; returns what each returned.

    Raises:
        AssertionError: with the seed that failed.
    """
    results: list[_Result] = []
    for seed in _seeds(least):
        try:
            results.append(run(seed))
        except Exception as error:
            raise AssertionError(f"seed={seed}: {error!r}") from error
    print(f"{len(results)} seeds")
    return results


def _seeds(least: int) -> Iterator[int]:
    if _ALONE is not None:
        yield int(_ALONE)
        return
    end = time.process_time() + _SECONDS
    seed = 0
    while seed < max(least, _SEEDS) or (not _SEEDS and time.process_time() < end):
        yield seed
        seed += 1
