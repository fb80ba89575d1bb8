"""Outcomes as rows of a chain, and what follows from them; pure.

The outcome of a job goes to the results topic: a result, a failure mark without a value, or a mark
that the job is tried again later. What follows goes to other topics: a dead letter, the job's next
life, jobs of other teams. All of it is a function of the stored outcome and of the input record, so
every attempt makes the same of it. That includes the partition: a header of the outcome has the
number of partitions of each topic that its follow-ups go to, so that a topic that grows meanwhile
does not lead one of them to a second place.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from dovetail.kafka.client.client import Partition
from dovetail.spark.records import murmur2
from dovetail.teams.chains.chain import Placed
from dovetail.teams.chains.rows import (
    DEAD,
    GATHERED,
    OUTCOME,
    POSTPONED_LIFE,
    Row,
    batch_bytes,
    follow_name,
)
from dovetail.teams.connectors import is_opening
from dovetail.teams.envelope import ITEM, TO, Header, Item, Job, job_of, number_in
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import (
    KIND,
    POSTPONED,
    REASON,
    DeadLetter,
    FailureKind,
    Postponed,
    outcome_of,
)
from dovetail.teams.workers.crew import Done, Ended

#: On an outcome: `topic=partitions` of each topic to which something follows.
PARTITIONS = "dovetail-partitions"
#: On an outcome whose items are gathered: when they were sprayed, in milliseconds.
SPRAYED = "dovetail-sprayed"


def output_topics(stage: Stage, *, delays: bool) -> list[str]:
    """The topics to which something may follow; with `delays`, the one of delayed jobs too."""
    found = {stage.topics.dead}
    for target in stage.targets.values():
        found |= {target.input_topic, *([target.gather_topic] if target.gather_topic else [])}
    if stage.gather is not None:
        found.add(stage.gather.topic)
    return sorted(found | ({stage.delays_topic} if delays else set()))


def outcome_row(
    stage: Stage,
    offset: int,
    job: Job,
    ended: Ended,
    *,
    results: int,
    counts: Mapping[str, int],
    now_ms: int,
) -> Placed:
    """The outcome of a job, and the partition of the results topic that it goes to."""
    place, key = (stage.topics.results, partition_of(job.key, results)), job.key
    if isinstance(ended, Done):
        value, headers = ended.result, ended.job.marks()
        if stage.gather is None and not ended.forwards:
            return place, Row(offset, OUTCOME, key, value, tuple(headers))
    elif isinstance(ended, Postponed):
        # Empty and not absent: a failure mark has no value.
        value, headers = b"", ended.headers()
    else:
        value, headers = None, ended.mark()
    topics = _topics(stage, job, ended)
    if topics:
        headers = [*headers, _partitions(tuple([(topic, counts[topic]) for topic in topics]))]
    if topics and isinstance(ended, Done) and any(one.item for one in ended.forwards):
        headers = [*headers, (SPRAYED, b"%d" % now_ms)]
    return place, Row(offset, OUTCOME, key, value, tuple(headers))


def follow_rows(
    stage: Stage, offset: int, job: Job, ended: Ended, *, counts: Mapping[str, int], now_ms: int
) -> list[Placed]:
    """What follows from an outcome, and where it goes. Items are sprayed at `now_ms`."""
    if stage.gather is None and isinstance(ended, Done) and not ended.forwards:
        return []
    topics = stage.topics
    gathered = _gathered(stage, offset, job, ended, counts)
    if isinstance(ended, DeadLetter) and ended.failure.kind is FailureKind.CANCELLED:
        return gathered
    if isinstance(ended, DeadLetter):
        letter = Row(offset, DEAD, job.key, job.payload, tuple(ended.headers()))
        return [_placed(topics.dead, letter, counts), *gathered]
    if isinstance(ended, Postponed):
        headers = (*ended.next_job(since_ms=now_ms).headers(), (TO, topics.input.encode()))
        life = Row(offset, POSTPONED_LIFE, job.key, job.payload, headers)
        return [_placed(stage.delays_topic, life, counts)]

    rows = gathered
    for number, forward in enumerate(ended.forwards):
        parent = job.id if forward.key != job.key else job.parent
        target = stage.targets[forward.target]
        topic = target.input_topic
        item = b""
        if forward.item:
            item = f"{forward.item}/{now_ms + target.gather_within_ms}".encode()
        if is_opening(forward.item):
            opening = Row(offset, follow_name(number), forward.key, b"", ((ITEM, item),))
            rows.append(_placed(target.gather_topic, opening, counts))
            continue
        due_ms = forward.after_ms and now_ms + forward.after_ms
        trace = ended.job.traceparent
        since_ms = now_ms if due_ms else 0
        next_job = Job(
            forward.key, forward.payload, parent, 0, due_ms, trace, since_ms, item or None
        )
        headers = tuple(next_job.headers())
        if due_ms:
            headers = (*headers, (TO, topic.encode()))
            topic = stage.delays_topic
        row = Row(offset, follow_name(number), next_job.key, forward.payload, headers)
        rows.append(_placed(topic, row, counts))
    return rows


def _gathered(
    stage: Stage, offset: int, job: Job, ended: Ended, counts: Mapping[str, int]
) -> list[Placed]:
    """The end of an item, for the gathering behind this team."""
    item = Item.of(job)
    if stage.gather is None or item is None or isinstance(ended, Postponed):
        return []
    headers: tuple[Header, ...] = ((ITEM, job.item or b""),)
    value = b""
    if isinstance(ended, Done):
        value = ended.result
    else:
        failure = ended.failure.bounded()
        headers = (*headers, (KIND, failure.kind.encode()), (REASON, failure.reason.encode()))
    return [_placed(stage.gather.topic, Row(offset, GATHERED, item.base, value, headers), counts)]


def too_large(rows: Iterable[Placed], limits: Mapping[str, int]) -> str:
    """Why a topic would not take one of the rows, as far as its limit is known; else nothing."""
    for (topic, _), row in rows:
        size = batch_bytes(row)
        if size > limits.get(topic, size):
            return (
                f"a record of {size} bytes for topic {topic!r}, which takes {limits[topic]} "
                "(max.message.bytes). Store what is large elsewhere and pass a reference to it"
            )
    return ""


def sprayed_of(outcome: Row) -> int:
    """When the items of a stored outcome were sprayed; 0 if none are gathered."""
    return number_in(dict(outcome.headers).get(SPRAYED))


def counts_of(outcome: Row) -> dict[str, int]:
    """The numbers of partitions that a stored outcome names."""
    text = dict(outcome.headers).get(PARTITIONS, b"").decode()
    return {topic: int(count) for topic, _, count in (one.rpartition("=") for one in text.split())}


def ended_of(outcome: Row, job: Job) -> Ended:
    """How the job ended, as its stored outcome says; a result is without what follows."""
    headers: dict[str, bytes] = dict(outcome.headers)
    if headers.get(KIND) == POSTPONED:
        mark = job_of(place="", key=outcome.key, value=b"", headers=headers.items())
        reason = headers.get(REASON, b"").decode(errors="replace")
        return Postponed(job, reason, mark.attempts, mark.not_before_ms)
    found = outcome_of(
        "",
        dead=KIND in headers,
        place="",
        key=outcome.key,
        value=outcome.value,
        headers=headers.items(),
    )
    if found.failure is None:
        return Done(job, found.payload, ())
    return DeadLetter(job, found.failure, found.attempts)


def _topics(stage: Stage, job: Job, ended: Ended) -> list[str]:
    if isinstance(ended, Postponed):
        return [stage.delays_topic]
    found: list[str] = []
    if stage.gather is None and isinstance(ended, Done) and not ended.forwards:
        return found
    if stage.gather is not None and Item.of(job) is not None:
        found.append(stage.gather.topic)
    if isinstance(ended, DeadLetter):
        cancelled = ended.failure.kind is FailureKind.CANCELLED
        return found if cancelled else [*found, stage.topics.dead]
    for one in ended.forwards:
        target = stage.targets[one.target]
        topic = target.gather_topic if is_opening(one.item) else target.input_topic
        found.append(stage.delays_topic if one.after_ms else topic)
    return list(dict.fromkeys(found)) if len(found) > 1 else found


@lru_cache(256)
def _partitions(counts: tuple[tuple[str, int], ...]) -> Header:
    return PARTITIONS, " ".join(f"{topic}={count}" for topic, count in counts).encode()


def _placed(topic: str, row: Row, counts: Mapping[str, int]) -> tuple[Partition, Row]:
    return (topic, partition_of(row.key, counts[topic])), row


def partition_of(key: bytes, count: int) -> int:
    """As the Java client's default. Compiled: in Python it took a tenth of the time of a job."""
    return (murmur2(key) & 0x7FFFFFFF) % count
