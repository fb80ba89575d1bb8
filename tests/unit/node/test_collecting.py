"""How often Python looks for garbage while a node starts, and afterwards."""

import gc

from dovetail.node import collecting


def test_after_a_start_garbage_is_looked_for_as_before() -> None:
    """F60: rarely during a start; a node that serves, or did not start, as usual."""
    usual = gc.get_threshold()
    for ends in (collecting.settle, collecting.usually):
        collecting.rarely()
        assert gc.get_threshold()[0] > usual[0]
        ends()
        assert gc.get_threshold() == usual
    gc.unfreeze()
