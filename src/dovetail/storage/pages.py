"""Reads whole chains, including their pages (`chain.py`), for code that must see every ledger.

It reads the records first and the pages second, because a ledger moves from a record to a page and
never back. So it sees every ledger that was in a chain throughout, and one that moved meanwhile
once.
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
