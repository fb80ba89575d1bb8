"""Chains read whole, pages and all (`chain.py`), for those who look at every ledger.

Records first, then pages: a ledger moves from the one to the other, never back. So every ledger
that was in a chain all the time is seen, and one that moved meanwhile is seen once.
"""

from dovetail.coordination.protocol import Coordinator
from dovetail.storage import chain
from dovetail.storage.chain import PAGES, PARTITIONS, Page, PartitionRecord


async def read_chains(coordinator: Coordinator) -> tuple[PartitionRecord, ...]:
    """All partitions of all topics, each with all its ledgers."""
    records = [chain.decode(item.value) for item in (await coordinator.range(PARTITIONS)).items]
    pages: dict[str, list[Page]] = {}
    for item in (await coordinator.range(PAGES)).items:
        prefix = item.key[: item.key.rindex("/") + 1]
        pages.setdefault(prefix, []).append(chain.decode_page(item.value))
    return tuple(
        chain.unfolded(record, pages.get(chain.pages_prefix(record), ())) for record in records
    )


async def read_whole(coordinator: Coordinator, record: PartitionRecord) -> PartitionRecord:
    """One partition with all its ledgers."""
    found = await coordinator.range(chain.pages_prefix(record))
    return chain.unfolded(record, (chain.decode_page(item.value) for item in found.items))
