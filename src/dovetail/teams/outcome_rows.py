"""Outcomes as rows of a chain, and what follows from them. Pure.

The outcome of a job goes to the results topic: a result, a failure mark without a value, or a mark
that the job is tried again later. What follows goes to other topics: a dead letter, the job's next
life, jobs of other teams. All of it is a function of the stored outcome and of the input record, so
every attempt makes the same of it. That includes the partition: an outcome says in a header how
many partitions the topics have to which its follow-ups go, so that a topic that grows meanwhile
does not lead one of them to a second place.
"""

from collections.abc import Mapping

from dovetail.kafka.client.client import Partition
from dovetail.kafka.client.partitioner import murmur2_partitioner
from dovetail.teams.chains.chain import Placed
from dovetail.teams.chains.rows import DEAD, OUTCOME, POSTPONED_LIFE, Row, follow_name
from dovetail.teams.envelope import TO, Job, job_of
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import (
    KIND,
    POSTPONED,
    REASON,
    TRACEBACK,
    DeadLetter,
    Postponed,
    outcome_of,
)
from dovetail.teams.workers.crew import Done, Ended

#: On an outcome: `topic=partitions` of each topic to which something follows.
PARTITIONS = "dovetail-partitions"


def output_topics(stage: Stage, *, delays: bool) -> list[str]:
    """The topics to which something may follow; with `delays`, the one of delayed jobs too."""
    targets = [target.input_topic for target in stage.targets.values()]
    return sorted({stage.topics.dead, *targets, *([stage.delays_topic] if delays else [])})


def outcome_row(
    stage: Stage, offset: int, job: Job, ended: Ended, *, results: int, counts: Mapping[str, int]
) -> Placed:
    """The outcome of a job, and the partition of the results topic that it goes to."""
    if isinstance(ended, Done):
        value, headers = ended.result, ended.job.marks()
    elif isinstance(ended, Postponed):
        # Empty and not absent: a failure mark has no value.
        value, headers = b"", ended.headers()
    else:
        value, headers = None, [one for one in ended.headers() if one[0] != TRACEBACK]
    topics = _topics(stage, ended)
    if topics:
        text = " ".join(f"{topic}={counts[topic]}" for topic in topics)
        headers = [*headers, (PARTITIONS, text.encode())]
    place = (stage.topics.results, murmur2_partitioner(job.key, results))
    return place, Row(offset, OUTCOME, job.key, value, tuple(headers))


def follow_rows(
    stage: Stage, offset: int, job: Job, ended: Ended, *, counts: Mapping[str, int], now_ms: int
) -> list[Placed]:
    """What follows from an outcome, and where it goes."""
    topics = stage.topics
    if isinstance(ended, DeadLetter):
        letter = Row(offset, DEAD, job.key, job.payload, tuple(ended.headers()))
        return [_placed(topics.dead, letter, counts)]
    if isinstance(ended, Postponed):
        headers = (*ended.next_job.headers(), (TO, topics.input.encode()))
        life = Row(offset, POSTPONED_LIFE, job.key, job.payload, headers)
        return [_placed(stage.delays_topic, life, counts)]

    rows = []
    for number, forward in enumerate(ended.forwards):
        parent = job.id if forward.id != job.id else job.parent
        topic = stage.targets[forward.target].input_topic
        due_ms = forward.after_ms and now_ms + forward.after_ms
        trace = ended.job.traceparent
        next_job = Job(forward.id, forward.payload, parent, 0, due_ms, trace)
        headers = tuple(next_job.headers())
        if due_ms:
            headers = (*headers, (TO, topic.encode()))
            topic = stage.delays_topic
        row = Row(offset, follow_name(number), next_job.key, forward.payload, headers)
        rows.append(_placed(topic, row, counts))
    return rows


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


def _topics(stage: Stage, ended: Ended) -> list[str]:
    if isinstance(ended, DeadLetter):
        return [stage.topics.dead]
    if isinstance(ended, Postponed):
        return [stage.delays_topic]
    found = dict.fromkeys(
        stage.delays_topic if one.after_ms else stage.targets[one.target].input_topic
        for one in ended.forwards
    )
    return list(found)


def _placed(topic: str, row: Row, counts: Mapping[str, int]) -> tuple[Partition, Row]:
    return (topic, murmur2_partitioner(row.key, counts[topic])), row
