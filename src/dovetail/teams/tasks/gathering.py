"""Serves one partition of a gathering: ends of items in, one job for each group out.

`gathers` decides which ends make a group and when it is closed; the chain stores its row once. No
code of the user runs here.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from dovetail.kafka.client.client import KafkaClient, Partition
from dovetail.kafka.client.partitioner import murmur2_partitioner
from dovetail.spark.fetching import Fetched, fetch
from dovetail.spark.objects import found_in
from dovetail.teams.chains.lane import clock_s
from dovetail.teams.chains.rows import OUTCOME, Row
from dovetail.teams.envelope import ITEM, Item
from dovetail.teams.outcome import KIND, REASON
from dovetail.teams.tasks.attempt import Attempt, Share, now_ms
from dovetail.teams.tasks.gathers import End, Group, Groups, payload_of


class Gathering(Attempt):
    """One attempt at a partition of a gathering."""

    def __init__(self, share: Share, client: KafkaClient, *, committing: KafkaClient) -> None:
        """Raises as `Attempt` does."""
        self._groups = Groups()
        self._asked_ms = self._read_ms = 0
        super().__init__(share, client, committing=committing)
        assert share.stage.gather is not None
        self._gather = share.stage.gather

    def outputs(self) -> Sequence[Partition]:
        return []

    def work(self, now_s: float, ready: set[int]) -> None:
        position = self._input.position
        fetched = self._input.take(now_s, ready)
        if fetched is not None:
            self._read(fetched, position)
        if self.wants_more and self._input.fileno() < 0:
            self._asked_ms = now_ms()
            self._input.ask(now_s)

    def follow_stored(self, outcome: Row) -> None:
        self._chain.follow(outcome.job, ())

    def forget(self, offsets: Collection[int]) -> None:
        for offset in offsets:
            for other in self._groups.end(offset):
                self._chain.release(other)

    def _read(self, fetched: Fetched, position: int) -> None:
        if fetched.batches:
            for one in found_in(fetched.batches, self._share.input, offset_min=position):
                headers = dict(one.headers)
                item = Item.parsed(one.key or b"", headers.get(ITEM, b""))
                if item is not None and Groups.counts(item, at_ms=one.at_ms):
                    self._take(one.offset, item, _end_of(one.value or b"", headers))
            self._chain.skip(self._input.position)

        if self._input.position >= fetched.high_watermark:
            self._read_ms = max(self._read_ms, self._asked_ms)
        for group in self._groups.over(read_ms=self._read_ms):
            self._close(group)

    def _take(self, offset: int, item: Item, end: End) -> None:
        effects = self._chain.take(offset)
        complete = self._groups.add(offset, item, end)
        if effects:
            self.do(effects)
        elif complete is not None:
            self._close(complete)

    def _close(self, group: Group) -> None:
        """Makes the group's row."""
        group.closed = True
        self._read_again(group)
        gather = self._gather
        payload = payload_of(group, given=self._stage.codec, wanted=gather.target.codec)
        key = group.base
        if gather.id_suffix is not None:
            key += f"/{gather.id_suffix}".encode()
        place = (self._share.results_topic, murmur2_partitioner(key, self._share.results))
        self._chain.decide(place, Row(group.last, OUTCOME, key, payload), ())
        self._moved_at_s = clock_s()

    def _read_again(self, group: Group) -> None:
        """Ends that did not fit into memory."""
        left = {end.left_at: n for n, end in group.ends.items() if end.left_at is not None}
        place = self._share.input
        for offset, number in sorted(left.items()):
            for fetched in fetch(self._client, place, offset, offset + 1, committed=True):
                one_only = {"offset_min": offset, "offset_end": offset + 1}
                for one in found_in(fetched.batches, place, **one_only):
                    end = _end_of(one.value or b"", dict(one.headers))
                    group.ends[number] = replace(end, left_at=offset)


def _end_of(value: bytes, headers: dict[str, bytes]) -> End:
    if KIND not in headers:
        return End(value)
    kind, reason = headers[KIND], headers.get(REASON, b"")
    return End(None, kind.decode(errors="replace"), reason.decode(errors="replace"))
