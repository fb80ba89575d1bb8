"""Which records of an input partition are repetitions, read from the log where memory lacks them.

A new attempt reads the time to live before its first record once; from then on every record passes
through here. The promise of `seen` is a function of the log, so each attempt finds the same answer.
"""

from collections.abc import Iterable, Sequence

import msgspec

from dovetail.kafka.client.client import KafkaClient, Partition
from dovetail.spark.fetching import fetch
from dovetail.spark.objects import Found, found_in
from dovetail.teams.envelope import Identity, Job, is_name, job_of, place_of
from dovetail.teams.tasks.seen import Seen


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of an input topic."""

    job: Job
    offset: int
    at_ms: int
    #: Whether the id is the producer's; else it is the record's place, which never repeats.
    named: bool


class SeenLog:
    """The identities of one partition, as its log has them."""

    def __init__(self, client: KafkaClient, partition: Partition, *, remember_ms: int) -> None:
        self._client, self._partition, self._remember_ms = client, partition, remember_ms
        self.seen: Seen | None = None

    def fresh(self, records: Sequence[Record]) -> list[Record]:
        """Those of the records, which follow the ones before, that are no repetitions."""
        oldest_ms = min(record.at_ms for record in records)
        start = records[0].offset
        if self.seen is None:
            self.seen = self._window(start, oldest_ms, forgets=True)
        seen = self.seen
        if seen.lacks(oldest_ms):
            # Not kept: it would grow with every late record.
            seen = self._window(start, oldest_ms, forgets=False)

        named = [record for record in records if record.named]
        identities = [record.job.identity for record in named]
        times_ms = [record.at_ms for record in named]
        repeated = seen.repeats(identities, times_ms)
        if seen is not self.seen:
            self.seen.repeats(identities, times_ms)
        if not any(repeated):
            return list(records)
        dropped = {record.offset for record, again in zip(named, repeated, strict=True) if again}
        return [record for record in records if record.offset not in dropped]

    def _window(self, start: int, oldest_ms: int, *, forgets: bool) -> Seen:
        """What came before `start`, as far back as a record of that time needs."""
        window_ms = max(0, oldest_ms - self._remember_ms)
        first = self._client.offsets({self._partition: window_ms})[self._partition]
        position = start if first < 0 else min(first, start)
        seen = Seen(remember_ms=self._remember_ms, covers_ms=window_ms, forgets=forgets)
        for fetched in fetch(self._client, self._partition, position, start, committed=True):
            found = found_in(
                fetched.batches, self._partition, offset_min=position, offset_end=start
            )
            seen.repeats(*_identities(found))
        return seen


def records_of(found: Iterable[Found], partition: Partition) -> list[Record]:
    """The records of an input partition, as jobs."""
    topic, number = partition
    records = []
    for offset, at_ms, key, value, headers in found:
        if is_name(key):
            # Most have no headers; the call took a fifth of the time of all this.
            plain = Job(key, value or b"") if not headers else None
            job = plain or job_of(place="", key=key, value=value, headers=headers)
            records.append(Record(job, offset, at_ms, True))
        else:
            place = place_of(topic, number, offset)
            job = job_of(place=place, key=None, value=value, headers=headers)
            records.append(Record(job, offset, at_ms, False))
    return records


def _identities(found: Iterable[Found]) -> tuple[list[Identity], list[int]]:
    """The identities and times of the records that have names; most are a key and no header."""
    named = [(_identity(one.key, one), one.at_ms) for one in found if is_name(one.key)]
    return [identity for identity, _ in named], [at_ms for _, at_ms in named]


def _identity(key: bytes, one: Found) -> Identity:
    if not one.headers:
        return key
    return job_of(place="", key=key, value=None, headers=one.headers).identity
