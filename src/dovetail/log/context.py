"""What the partitions of a node share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.clock import Clock, UnhurriedTime
from dovetail.coordination.protocol import Coordinator
from dovetail.errors import DovetailError, NotOwner
from dovetail.log.tail import TailBudget
from dovetail.storage import Ensembles, LedgerId

if TYPE_CHECKING:
    from dovetail.log.partition import Partition


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What all partitions of a node share."""

    node_id: int
    coordinator: Coordinator
    ensembles: Ensembles
    clock: Clock
    #: The time of day for what expires.
    time: UnhurriedTime
    tail_budget: TailBudget
    next_ledger_id: Callable[[], Awaitable[LedgerId]]
    #: Called when a partition turns out to have another owner.
    on_lost: Callable[["Partition", NotOwner], None]
    #: Called when it could not go on in a new ledger, before `roll_error` says so.
    on_roll_failed: Callable[["Partition", DovetailError], None] = lambda *_: None
