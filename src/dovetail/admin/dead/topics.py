"""Dead letters of teams and shared streams: records of topics, whose headers say why they died.

A replay copies the job to its team's input topic, under its id and with the count of its attempts,
without which the team would take it for a repetition; an event goes to the end of its original
stream, which its header names. Then the record is marked (`marks`).

Topics of dead letters are those that a pipeline's driver reports, and those whose name ends in
`.dead`; of their records only those count whose headers say why they died.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import TopicCollection, TopicPartition

from dovetail.admin.dead.letter import GONE, DeadDone, DeadLeft, DeadLetter, DeadSource, Found
from dovetail.admin.dead.marks import DeadMarks, Place
from dovetail.admin.kafka import Kafka, Partition
from dovetail.admin.pipelines import PipelineReports
from dovetail.admin.positions import Bounds, bounds_of
from dovetail.admin.records import NewRecord, ReadLimits, Record, Span, read, write
from dovetail.dead_letter import ATTEMPTS, KIND, OF_THE_FAILURE, REASON, SOURCE, TRACEBACK
from dovetail.errors import DovetailError, InvalidInput, Refused

#: The end of the name that teams give such a topic.
_ENDING = ".dead"
#: Records of one partition that are looked at for a page, beyond those that are marked.
_LOOK_MAX = 2_000


@dataclass(frozen=True, slots=True)
class _DeadTopic:
    name: str
    id: str
    #: Where a replay goes; None if it is not known.
    input: str | None

    def place(self, record: Record) -> Place:
        return self.id, record.partition, record.offset


class DeadTopics:
    """The dead letters of a cluster's teams."""

    def __init__(self, pipelines: PipelineReports) -> None:
        self._pipelines = pipelines
        self._marks = DeadMarks()

    def look(
        self, kafka: Kafka, topic_ids: Mapping[str, str], name: str | None, limit: int
    ) -> Found:
        """The newest ones of each topic, or of one; with `limit` 0 only how many.

        `topic_ids` are the topics that exist, with their ids. A topic that cannot be read is in the
        answer with its trouble.
        """
        found = Found()
        topics = self._topics(kafka, topic_ids, name)
        marked = self._marks.marked(kafka) if topics else frozenset()
        for topic in topics:
            try:
                letters, count = _letters(kafka, topic, marked, limit)
            except DovetailError as error:
                found.sources.append(DeadSource("topic", topic.name, None, str(error)))
                continue
            found.sources.append(DeadSource("topic", topic.name, count))
            found.letters.extend(letters)
        return found

    def candidates(self, kafka: Kafka, topics: Sequence[str]) -> list[str]:
        """Those of these topics that hold dead letters by their name or a report."""
        reported = self._inputs(kafka)
        return [topic for topic in topics if topic in reported or topic.endswith(_ENDING)]

    def _inputs(self, kafka: Kafka) -> dict[str, str]:
        """Topics of dead letters that pipelines report, with the topic that a replay goes to."""
        teams = [team for each in self._pipelines.list(kafka) for team in each.teams]
        return {team.dead: team.input for team in teams if team.dead}

    def replay(
        self, kafka: Kafka, topic_ids: Mapping[str, str], name: str, ids: list[str], *, who: str
    ) -> DeadDone:
        """Copies jobs to their team's input. Raises `Refused`, `InvalidInput`, `Uncertain`."""
        topic = self._topic(kafka, topic_ids, name)
        marked = self._marks.marked(kafka)
        records, left = _chosen(kafka, topic, ids, marked)
        write(kafka, [_again(record, _aim(record, topic, topic_ids)) for record in records])
        self._deal_with(kafka, topic, records, action="replayed", who=who)
        return DeadDone(len(records), left)

    def drop(
        self, kafka: Kafka, topic_ids: Mapping[str, str], name: str, ids: list[str], *, who: str
    ) -> DeadDone:
        """Marks them, so that they do not show any more. Raises `InvalidInput`, `Uncertain`."""
        topic = self._topic(kafka, topic_ids, name)
        records, left = _chosen(kafka, topic, ids, self._marks.marked(kafka))
        self._deal_with(kafka, topic, records, action="dropped", who=who)
        return DeadDone(len(records), left)

    def _topics(
        self, kafka: Kafka, topic_ids: Mapping[str, str], name: str | None
    ) -> list[_DeadTopic]:
        inputs = self._inputs(kafka)
        found = []
        for topic, topic_id in topic_ids.items():
            if name not in (None, topic) or not (topic in inputs or topic.endswith(_ENDING)):
                continue
            aim = inputs.get(topic) or topic.removesuffix(_ENDING) + ".input"
            found.append(_DeadTopic(topic, topic_id, aim if aim in topic_ids else None))
        return found

    def _topic(self, kafka: Kafka, topic_ids: Mapping[str, str], name: str) -> _DeadTopic:
        found = self._topics(kafka, topic_ids, name)
        if not found:
            kafka.metadata().topic(name)
            raise InvalidInput(
                f"{name!r} is not a topic of dead letters: its name does not end in {_ENDING}, and "
                "no pipeline reports it"
            )
        return found[0]

    def _deal_with(
        self, kafka: Kafka, topic: _DeadTopic, records: Sequence[Record], *, action: str, who: str
    ) -> None:
        if not records:
            return
        places = [topic.place(record) for record in records]
        self._marks.mark(kafka, places, action=action, who=who)
        _trim(kafka, topic, self._marks.marked(kafka))


def topic_ids_of(kafka: Kafka, name: str) -> dict[str, str]:
    """The topics that exist, for a client that wants dead letters of one of them, with its id.

    Raises `TopicUnknown`.
    """
    metadata = kafka.metadata()
    metadata.topic(name)
    described = kafka.ask(
        f"looking up topic {name!r}",
        lambda admin: admin.describe_topics(TopicCollection([name])),
    )
    found = described[name].topic_id
    bits = (found.get_most_significant_bits(), found.get_least_significant_bits())
    ids = dict.fromkeys(metadata.topics, "")
    return {**ids, name: "".join(f"{number % 2**64:016x}" for number in bits)}


def _aim(record: Record, topic: _DeadTopic, topic_ids: Mapping[str, str]) -> str:
    """The target of a replay. Raises `Refused` if it is unknown."""
    source = _text(record.header(SOURCE))
    if source is not None and source in topic_ids:
        return source
    if source is not None and source.startswith("timeline:"):
        raise Refused(f"the letter came from {source!r}; schedule it there again")
    if source is not None:
        raise Refused(f"topic {source!r}, which the event came from, no longer exists")
    if topic.input is None:
        name = topic.name
        raise Refused(
            f"the input topic of the team with dead letters in {name!r} is not known: no "
            f"pipeline reports it, and there is no topic {name.removesuffix(_ENDING)}.input"
        )
    return topic.input


def _can_replay(record: Record, topic: _DeadTopic) -> bool:
    source = _text(record.header(SOURCE))
    if source is None:
        return topic.input is not None
    return not source.startswith("timeline:")


def _again(record: Record, topic: str) -> NewRecord:
    of_stream = record.header(SOURCE) is not None
    ours = OF_THE_FAILURE | {ATTEMPTS} if of_stream else OF_THE_FAILURE
    headers = tuple(h for h in record.headers if h[0] not in ours)
    return NewRecord(topic=topic, key=record.key, value=record.value, headers=headers)


def _bounds(kafka: Kafka, topic: str) -> tuple[dict[Partition, Bounds], bool]:
    """Of the partitions that answer, and whether all do."""
    metadata = kafka.metadata(topic)
    places = metadata.partitions(topic)
    bounds = bounds_of(kafka, places, metadata=metadata)
    return bounds, len(bounds) == len(places)


def _is_open(topic: _DeadTopic, marked: frozenset[Place]) -> Callable[[Record], bool]:
    """Whether a record says why it died, and nobody has dealt with it."""
    return lambda record: record.header(KIND) is not None and topic.place(record) not in marked


def _letters(
    kafka: Kafka, topic: _DeadTopic, marked: frozenset[Place], limit: int
) -> tuple[list[DeadLetter], int | None]:
    bounds, whole = _bounds(kafka, topic.name)
    spans = []
    count = 0
    for (_, number), bound in bounds.items():
        dealt_with = sum(
            (at, partition) == (topic.id, number) and bound.first <= offset < bound.end
            for at, partition, offset in marked
        )
        count += bound.end - bound.first - dealt_with
        look_at = min(_LOOK_MAX, limit) + dealt_with
        spans.append(Span(number, max(bound.first, bound.end - look_at), bound.end))

    letters: list[DeadLetter] = []
    if limit:
        limits = ReadLimits(scan=_LOOK_MAX * len(spans) + len(marked))
        reading = read(kafka, topic.name, spans, limits, wanted=_is_open(topic, marked))
        youngest = sorted(reading.records, key=lambda record: record.timestamp_ms)[-limit:]
        letters = [_letter(topic, record) for record in youngest]
    return letters, count if whole else None


def _letter(topic: _DeadTopic, record: Record) -> DeadLetter:
    attempts = record.header(ATTEMPTS) or b""
    return DeadLetter(
        source="topic",
        name=topic.name,
        id=f"{record.partition}:{record.offset}",
        key=record.key,
        body=record.value,
        headers=[h for h in record.headers if h[0] not in OF_THE_FAILURE],
        reason=_text(record.header(REASON)) or "",
        kind=_text(record.header(KIND)),
        attempts=int(attempts) if attempts.isdigit() else None,
        died_ms=record.timestamp_ms,
        detail=_text(record.header(TRACEBACK)),
        can_replay=_can_replay(record, topic),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _chosen(
    kafka: Kafka, topic: _DeadTopic, ids: list[str], marked: frozenset[Place]
) -> tuple[list[Record], list[DeadLeft]]:
    """The records of these ids, and those that do not exist or were dealt with before."""
    bounds, _ = _bounds(kafka, topic.name)
    wanted = [_parse(each) for each in ids]
    spans: dict[int, Span] = {}
    for partition, offset in wanted:
        bound = bounds.get((topic.name, partition), Bounds(0, 0))
        if bound.first <= offset < bound.end:
            known = spans.get(partition, Span(partition, offset, offset + 1))
            spans[partition] = Span(partition, min(known.start, offset), max(known.end, offset + 1))
    scan = sum(span.end - span.start for span in spans.values())
    if scan > 100 * _LOOK_MAX:
        raise InvalidInput(
            "these dead letters are too far apart to read at once; choose ones that are closer "
            "together"
        )

    places, is_open = set(wanted), _is_open(topic, marked)
    reading = read(
        kafka,
        topic.name,
        spans.values(),
        ReadLimits(scan=max(1, scan)),
        wanted=lambda record: (record.partition, record.offset) in places and is_open(record),
    )
    there = {(record.partition, record.offset) for record in reading.records}
    gone = [each for each, place in zip(ids, wanted, strict=True) if place not in there]
    return reading.records, [DeadLeft(each, GONE) for each in gone]


def _parse(text: str) -> tuple[int, int]:
    if re.fullmatch(r"[0-9]+:[0-9]+", text) is None:
        raise InvalidInput(
            f"{text!r} is not an id of a dead letter in a topic; write partition:offset, such as "
            "0:42"
        )
    partition, offset = map(int, text.split(":"))
    return partition, offset


def _trim(kafka: Kafka, topic: _DeadTopic, marked: frozenset[Place]) -> None:
    """Deletes marked records that stand at the beginning of their partition."""
    below = []
    for (name, number), bound in _bounds(kafka, topic.name)[0].items():
        first = bound.first
        while first < bound.end and (topic.id, number, first) in marked:
            first += 1
        if first > bound.first:
            below.append(TopicPartition(name, number, first))
    if below:
        kafka.ask(f"deleting records of {topic.name!r}", lambda admin: admin.delete_records(below))
