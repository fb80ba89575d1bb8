"""A lock that this relay owns: its topic, shard and term, and the batches written down under it."""

from dataclasses import dataclass

from dovetail.outbox.batch import Batch, Identity


@dataclass(frozen=True, slots=True)
class Claim:
    """A lock that is held."""

    topic: str
    shard: int
    shards: int
    owner: str
    term: int
    retries: int
    identity: Identity | None
    batches: list[Batch]
