"""Dead letters of teams: records of topics, which say by their headers why they died.

A replay copies the work to its team's input topic, under its id and with the count of its attempts,
without which the team would take it for a repetition. Then the record is marked (`dead_marks`).
"""

from dataclasses import dataclass

from dovetail.console.desk import Desk
from dovetail.console.nouns.dead_letter import (
    DeadDone,
    DeadLeft,
    DeadLetter,
    DeadSource,
    Found,
)
from dovetail.console.nouns.dead_marks import Place
from dovetail.console.nouns.offsets import Bounds, bounds_of
from dovetail.console.nouns.records import NewRecord, ReadLimits, Record, Span, write
from dovetail.console.web.content import shown, shown_headers
from dovetail.errors import DovetailError, InvalidInput, Refused

# The headers of `teams/outcome.py` and `teams/envelope.py`, which need not be installed here.
KIND = "dovetail-kind"
REASON = "dovetail-reason"
TRACEBACK = "dovetail-traceback"
ATTEMPTS = "dovetail-attempts"
_OF_THE_FAILURE = frozenset({KIND, REASON, TRACEBACK})

#: The end of the name that teams give such a topic.
_ENDING = ".dead"
#: Records of one partition that are looked at for a page, beyond those that are marked.
_LOOK_MAX = 2_000


@dataclass(frozen=True, slots=True)
class _DeadTopic:
    name: str
    id: str
    partitions: int
    #: Where a replay goes; None if it is not known.
    input: str | None


async def _topics(desk: Desk, name: str | None) -> list[_DeadTopic]:
    told = [t for heard in (await desk.pipelines.heard()).values() for t in heard.told.teams]
    inputs = {team.dead: team.input for team in told if team.dead}
    facts = {f.name: f for f in desk.insight.topics() if f.state == "ready" and not f.internal}
    found = []
    for topic, fact in facts.items():
        if name not in (None, topic) or not (topic in inputs or topic.endswith(_ENDING)):
            continue
        aim = inputs.get(topic) or topic.removesuffix(_ENDING) + ".input"
        known = aim if aim in facts else None
        found.append(_DeadTopic(topic, fact.id, fact.partitions, known))
    return found


async def look(desk: Desk, name: str | None, limit: int, bytes_max: int) -> Found:
    """The newest ones of each topic, or of one."""
    found = Found()
    topics = await _topics(desk, name)
    if not topics:
        return found
    marked = await desk.marks.marked()
    for topic in topics:
        try:
            letters, count = await _letters(desk, topic, marked, limit, bytes_max)
        except DovetailError as error:
            found.sources.append(DeadSource("topic", topic.name, None, str(error)))
            continue
        found.sources.append(DeadSource("topic", topic.name, count))
        found.letters.extend(letters)
    return found


async def _letters(
    desk: Desk, topic: _DeadTopic, marked: frozenset[Place], limit: int, bytes_max: int
) -> tuple[list[DeadLetter], int | None]:
    places = [(topic.name, number) for number in range(topic.partitions)]
    bounds = await bounds_of(desk.kafka, places)
    spans = []
    count = 0
    for (_, number), bound in bounds.items():
        dealt_with = sum(
            1
            for at, partition, offset in marked
            if (at, partition) == (topic.id, number) and bound.first <= offset < bound.end
        )
        count += bound.end - bound.first - dealt_with
        look_at = min(_LOOK_MAX, limit) + dealt_with
        spans.append(Span(number, max(bound.first, bound.end - look_at), bound.end))
    if limit == 0:
        return [], count if len(bounds) == topic.partitions else None
    reading = await desk.reader.read(
        topic.name,
        spans,
        ReadLimits(scan=_LOOK_MAX * len(spans) + len(marked)),
        wanted=lambda record: (
            record.header(KIND) is not None
            and (topic.id, record.partition, record.offset) not in marked
        ),
    )
    youngest = sorted(reading.records, key=lambda record: record.timestamp_ms)[-limit:]
    letters = [_letter(topic, record, bytes_max) for record in youngest]
    return letters, count if len(bounds) == topic.partitions else None


def _letter(topic: _DeadTopic, record: Record, bytes_max: int) -> DeadLetter:
    attempts = record.header(ATTEMPTS) or b""
    return DeadLetter(
        source="topic",
        name=topic.name,
        id=f"{record.partition}:{record.offset}",
        key=shown(record.key, bytes_max),
        body=shown(record.value, bytes_max),
        headers=shown_headers(
            [h for h in record.headers if h[0] not in _OF_THE_FAILURE], bytes_max
        ),
        reason=_text(record.header(REASON)) or "",
        kind=_text(record.header(KIND)),
        attempts=int(attempts) if attempts.isdigit() else None,
        died_ms=record.timestamp_ms,
        detail=_text(record.header(TRACEBACK)),
        can_replay=topic.input is not None,
        can_drop=True,
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


async def replay(desk: Desk, name: str, ids: list[str], who: str) -> DeadDone:
    """Copies works to their team's input topic."""
    topic = await _topic(desk, name)
    if topic.input is None:
        raise Refused(
            f"the input topic of the team with dead letters in {name!r} is not known: no running "
            f"pipeline names it, and there is no topic {name.removesuffix(_ENDING)}.input"
        )
    records, left = await _chosen(desk, topic, ids)
    await write(
        desk.kafka,
        [
            NewRecord(
                topic=topic.input,
                key=record.key,
                value=record.value,
                headers=tuple(h for h in record.headers if h[0] not in _OF_THE_FAILURE),
            )
            for record in records
        ],
    )
    await _deal_with(desk, topic, records, "replayed", who)
    return DeadDone(len(records), left)


async def drop(desk: Desk, name: str, ids: list[str], who: str) -> DeadDone:
    """Marks them, so that they are not shown any more."""
    topic = await _topic(desk, name)
    records, left = await _chosen(desk, topic, ids)
    await _deal_with(desk, topic, records, "dropped", who)
    return DeadDone(len(records), left)


async def _topic(desk: Desk, name: str) -> _DeadTopic:
    found = await _topics(desk, name)
    if not found:
        desk.insight.topic(name)
        raise InvalidInput(
            f"{name!r} is no topic of dead letters: its name does not end in {_ENDING}, and no "
            "running pipeline names it"
        )
    return found[0]


async def _chosen(
    desk: Desk, topic: _DeadTopic, ids: list[str]
) -> tuple[list[Record], list[DeadLeft]]:
    """The records of these ids, and those that are none or were dealt with before."""
    marked = await desk.marks.marked()
    bounds = await bounds_of(desk.kafka, [(topic.name, n) for n in range(topic.partitions)])
    wanted = [_parse(each) for each in ids]
    spans: dict[int, Span] = {}
    for partition, offset in wanted:
        bound = bounds.get((topic.name, partition), Bounds(0, 0))
        if bound.first <= offset < bound.end:
            known = spans.get(partition, Span(partition, offset, offset + 1))
            spans[partition] = Span(partition, min(known.start, offset), max(known.end, offset + 1))
    scan = sum(span.end - span.start for span in spans.values())
    if scan > 100 * _LOOK_MAX:
        raise InvalidInput("these dead letters lie far apart; choose some that are nearer together")
    places = set(wanted)
    reading = await desk.reader.read(
        topic.name,
        spans.values(),
        ReadLimits(scan=max(1, scan)),
        wanted=lambda record: (
            (record.partition, record.offset) in places
            and record.header(KIND) is not None
            and (topic.id, record.partition, record.offset) not in marked
        ),
    )
    there = {(record.partition, record.offset) for record in reading.records}
    left = [
        DeadLeft(each, "there is no such dead letter any more")
        for each, place in zip(ids, wanted, strict=True)
        if place not in there
    ]
    return reading.records, left


def _parse(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise InvalidInput(f"{text!r} is no id of a dead letter in a topic; they are like 0:42")
    return int(partition), int(offset)


async def _deal_with(
    desk: Desk, topic: _DeadTopic, records: list[Record], action: str, who: str
) -> None:
    if not records:
        return
    places: list[Place] = [(topic.id, record.partition, record.offset) for record in records]
    await desk.marks.mark(places, action=action, who=who)
    await _trim(desk, topic)


async def _trim(desk: Desk, topic: _DeadTopic) -> None:
    """Deletes marked records that stand at the beginning of their partition."""
    from confluent_kafka import TopicPartition

    marked = await desk.marks.marked()
    bounds = await bounds_of(desk.kafka, [(topic.name, n) for n in range(topic.partitions)])
    below = []
    for (name, number), bound in bounds.items():
        first = bound.first
        while first < bound.end and (topic.id, number, first) in marked:
            first += 1
        if first > bound.first:
            below.append(TopicPartition(name, number, first))
    if below:
        await desk.kafka.ask(
            f"deleting records of {topic.name!r}", lambda admin: admin.delete_records(below)
        )
