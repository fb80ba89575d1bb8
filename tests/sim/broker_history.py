"""What must be true of every change in the coordination service, checked as it happens.

Every transaction is known by its author, one life of one broker, so what is checked is who *did*
something, not who said so:

- A term belongs to the one life that claimed it: nobody else changes the partition under it.
- Terms rise by one at a time. Whoever has named a successor changes nothing any more.
- Nobody takes a partition from a broker that is announced.
- Ledgers only come at the end of a chain, two at most are open, ids are never given twice; what is
  closed stays as it is, and offsets follow each other. Closed neighbours leave a chain only for one
  that was named before as being rewritten, and that covers the same offsets.
- A partition gets its key while its topic lives, and once. A topic goes from CREATING to READY to
  DELETING, and when its name becomes free its keys and its ledgers are gone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dovetail.log.catalog import TOPICS
from dovetail.log.owners import DELETED
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.storage import chain
from dovetail.storage.chain import PAGES, PARTITIONS, LedgerInfo, Page, PartitionRecord

_ORDER = [TopicState.CREATING, TopicState.READY, TopicState.DELETING]


@dataclass(frozen=True, slots=True)
class Author:
    """One life of a broker."""

    number: int
    life: int


class History:
    """Follows all keys; raises `AssertionError` at the first change that must not be."""

    def __init__(
        self,
        *,
        lives: Callable[[int], bool],
        holds: Callable[[int, int], bool],
        on_topic: Callable[[TopicRecord, TopicRecord | None], None],
    ) -> None:
        """`lives(node)`: it is announced; `holds(node, ledger)`: the storage node has entries."""
        self._lives = lives
        self._holds = holds
        self._on_topic = on_topic
        self.topics: dict[str, TopicRecord] = {}
        self.partitions: dict[str, PartitionRecord] = {}
        #: Everything that a partition's record named last, also when its key is gone.
        self._of_topic: dict[str, dict[str, PartitionRecord]] = {}
        self._pages: dict[str, Page] = {}
        #: Pages that a chain had at most.
        self.pages_most = 0
        self._claims: dict[tuple[str, int], Author] = {}
        self._given_on: set[tuple[str, int]] = set()
        self._ledgers: dict[int, str] = {}
        self._ids: set[str] = set()
        self.claims = self.swaps = 0
        #: What owners have named a successor for, as they left it.
        self.handed_over: list[PartitionRecord] = []

    def on_put(self, key: str, value: bytes, author: Author | None) -> None:
        if key.startswith(TOPICS):
            self._on_topic_put(msgspec.json.decode(value, type=TopicRecord))
        elif key.startswith(PAGES):
            self._pages[key] = chain.decode_page(value)
        elif key.startswith(PARTITIONS):
            record = self._whole(chain.decode(value))
            before = self.partitions.get(key)
            assert author is not None
            if before is None:
                self._on_registered(key, record)
            elif record.term > before.term:
                self._on_claimed(key, before, record, author)
            else:
                self._on_changed(key, before, record, author)
            self.partitions[key] = record
            self._of_topic[record.topic_id][key] = record

    def _whole(self, record: PartitionRecord) -> PartitionRecord:
        """The chain with its pages, which are all there; a ledger is in one place only."""
        numbers = range(record.paged.first, record.paged.next)
        pages = [self._pages[record.page_key(number)] for number in numbers]
        self.pages_most = max(self.pages_most, len(pages))
        paged = [info for page in pages for info in page.ledgers]
        assert record.paged.ledgers == len(paged)
        assert record.paged.payload_bytes == sum(info.payload_bytes for info in paged)
        assert not paged or record.closed, "the newest closed ledger moved to a page"
        whole = chain.unfolded(msgspec.structs.replace(record, rewriting=None), pages)
        assert len(whole.ledgers) == len(paged) + len(record.ledgers), "a ledger is there twice"
        return msgspec.structs.replace(whole, rewriting=record.rewriting)

    def on_delete(self, key: str) -> None:
        if key.startswith(PAGES):
            del self._pages[key]
        elif key.startswith(TOPICS):
            self._on_removed(self.topics.pop(key.removeprefix(TOPICS)))
        elif key.startswith(PARTITIONS):
            record = self.partitions.pop(key)
            topic = self._topic(record.topic_id)
            assert topic is not None, f"{key} outlived its topic"
            assert topic.state is TopicState.DELETING, f"{key} was removed while its topic lives"

    # Topics

    def _topic(self, topic_id: str) -> TopicRecord | None:
        return next((t for t in self.topics.values() if t.id == topic_id), None)

    def _on_topic_put(self, record: TopicRecord) -> None:
        before = self.topics.get(record.name)
        if before is None:
            assert record.id not in self._ids, f"topic id {record.id} came back"
            assert record.state is TopicState.CREATING
            self._ids.add(record.id)
            self._of_topic[record.id] = {}
        else:
            assert record.id == before.id, f"topic {record.name} was overwritten by another"
            assert _ORDER.index(record.state) >= _ORDER.index(before.state), (
                f"topic {record.name} went back from {before.state} to {record.state}"
            )
            assert record.partitions >= before.partitions
        self.topics[record.name] = record
        self._on_topic(record, before)

    def _on_removed(self, topic: TopicRecord) -> None:
        assert topic.state is TopicState.DELETING, f"topic {topic.name} vanished"
        for key, record in self._of_topic[topic.id].items():
            assert key not in self.partitions, f"{key} outlives its topic"
            assert not any(page.startswith(chain.pages_prefix(record)) for page in self._pages)
            for info in named_in(record):
                for node in info.placement.nodes:
                    assert not self._holds(node, info.ledger), (
                        f"topic {topic.name} is gone, and node {node} has its ledger {info.ledger}"
                    )

    # Partitions

    def _on_registered(self, key: str, record: PartitionRecord) -> None:
        topic = self._topic(record.topic_id)
        assert topic is not None, f"{key} registered for a topic that is gone"
        assert topic.state is not TopicState.DELETING, f"{key} registered for a dying topic"
        assert key not in self._of_topic[record.topic_id], f"{key} registered twice"
        assert record.term == 0
        assert not record.ledgers

    def _on_claimed(
        self, key: str, before: PartitionRecord, after: PartitionRecord, author: Author
    ) -> None:
        assert after.term == before.term + 1, f"{key}: term {before.term} to {after.term}"
        assert after.ledgers == before.ledgers, f"{key}: a claim changed the chain"
        self._claims[key, after.term] = author
        self.claims += 1
        if after.owner not in (author.number, DELETED):
            assert before.owner == author.number, f"{key}: given on by {author}"
            self._given_on.add((key, after.term))
            self.handed_over.append(after)
        topic = self._topic(after.topic_id)
        dying = topic is None or topic.state is TopicState.DELETING
        taken = before.owner != author.number and not dying
        assert not (taken and self._lives(before.owner)), (
            f"{key}: {author} took it from {before.owner}, which is announced"
        )

    def _on_changed(
        self, key: str, before: PartitionRecord, after: PartitionRecord, author: Author
    ) -> None:
        assert after.term == before.term, f"{key}: term fell from {before.term} to {after.term}"
        place = (key, after.term)
        claimed_by = self._claims.get(place)
        assert author == claimed_by, (
            f"{key}: term {after.term} is {claimed_by}'s, and {author} changed it"
        )
        assert place not in self._given_on, f"{key}: changed after it was given on"
        assert after.owner == before.owner
        self._check_chain(key, before, after)

    def _check_chain(self, key: str, before: PartitionRecord, after: PartitionRecord) -> None:
        known = {info.ledger: info for info in before.ledgers}
        rewritten = None if before.rewriting is None else before.rewriting.ledger
        for info in named_in(after):
            owner = self._ledgers.setdefault(info.ledger, key)
            assert owner == key, f"ledger {info.ledger} is in {owner} and in {key}"
        for info in after.ledgers:
            if info.ledger == rewritten:
                self._check_swap(key, before, after, info)
            elif info.ledger not in known:
                assert not info.closed
                assert info is after.ledgers[-1], f"{key}: a ledger came in the middle"
                assert info.term == after.term, f"{key}: a ledger of another term was opened"
            elif known[info.ledger].closed:
                assert info == known[info.ledger], f"{key}: closed ledger {info.ledger} changed"
        assert len(after.open) <= 2, f"{key}: three open ledgers"
        end = None
        for info in after.closed:
            assert end in (None, info.first_offset), f"{key}: offsets jump at {info.ledger}"
            assert info.offset_end > info.first_offset
            end = info.offset_end
        kept = {info.ledger for info in after.ledgers}
        left = [info for info in before.closed if info.ledger not in kept]
        assert not left or rewritten in kept, f"{key}: closed ledgers left the chain: {left}"

    def _check_swap(
        self, key: str, before: PartitionRecord, after: PartitionRecord, made: LedgerInfo
    ) -> None:
        """A compacted ledger is closed and covers what left the chain for it."""
        self.swaps += 1
        kept = {info.ledger for info in after.ledgers}
        left = [info for info in before.closed if info.ledger not in kept]
        assert made.closed, f"{key}: a ledger that is being rewritten is in the chain"
        assert after.rewriting is None
        assert (made.first_offset, made.offset_end) == (left[0].first_offset, left[-1].offset_end)
        assert made.term == left[0].term


def named_in(record: PartitionRecord) -> tuple[LedgerInfo, ...]:
    """Every ledger that a record names."""
    return record.ledgers if record.rewriting is None else (*record.ledgers, record.rewriting)
