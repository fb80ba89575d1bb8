"""How often Python looks for garbage: rarely while a node starts, then as usual.

What a start makes nearly all lives as long as the node. To look through it again and again took a
fifth of the processor time of a start with ten thousand partitions.
"""

import gc

_USUAL = gc.get_threshold()

#: The newest objects are looked through now and then, all of them hardly ever.
_AT_START = (10_000, 20, 50)


def rarely() -> None:
    """For a start."""
    gc.set_threshold(*_AT_START)


def usually() -> None:
    """For a node that serves, or did not start."""
    gc.set_threshold(*_USUAL)


def settle() -> None:
    """Looks once at everything that the start has made, and then leaves it alone."""
    gc.collect()
    gc.freeze()
    usually()
