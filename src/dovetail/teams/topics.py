"""Creates the topics that a pipeline needs."""

from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # Its exports are implicit.
    AdminClient,
    NewTopic,
)

from dovetail.errors import Refused, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.teams.graph import Pipeline, Stage, cancels_topic, delays_topic
from dovetail.teams.team import BACKOFF_MS_MAX

#: An id counts as seen for the time to live; records must be kept as long, and then some.
_KEEP_FACTOR = 2
_KEEP_MS_MIN = 7 * 24 * 3_600_000
_CANCELS_KEEP_MS = BACKOFF_MS_MAX + _KEEP_MS_MIN
#: How much longer than the broker we wait for its answer.
_GRACE_S = 5.0


def create_topics(
    pipeline: Pipeline,
    bootstrap: str,
    *,
    timeout_s: float = 30.0,
    config: Mapping[str, str] | None = None,
) -> list[str]:
    """Creates the missing topics; returns their names. Raises `Unavailable` and `Refused`."""
    admin = AdminClient(Brokers.at(bootstrap, config).for_librdkafka())
    try:
        existing = set(admin.list_topics(timeout=timeout_s).topics)
    except KafkaException as error:
        raise Unavailable(f"cannot reach {bootstrap}: {error.args[0].str()}") from error

    # A team of another pipeline that was never started has no topics yet.
    stages = [*pipeline.stages(), *pipeline.foreign_stages()]
    wanted = [topic for stage in stages for topic in _topics_of(stage)]
    if pipeline.has_delays:
        keep = {"retention.ms": str(_KEEP_MS_MIN)}
        wanted.append(NewTopic(delays_topic(pipeline.name), 1, config=keep))
    wanted.append(cancels_of(pipeline.name))
    missing = [topic for topic in wanted if topic.topic not in existing]
    create(admin, missing, timeout_s=timeout_s)
    return [str(topic.topic) for topic in missing]


def cancels_of(pipeline: str) -> NewTopic:
    """The topic of cancels: one partition, kept for longer than a retry can be put off."""
    kept = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(_CANCELS_KEEP_MS)}
    return NewTopic(cancels_topic(pipeline), 1, config=kept)


def create(admin: AdminClient, topics: Sequence[NewTopic], *, timeout_s: float) -> None:
    """Creates topics; one that exists is left alone. Raises `Refused`."""
    if not topics:
        return
    for name, future in admin.create_topics(list(topics), request_timeout=timeout_s).items():
        try:
            future.result(timeout_s + _GRACE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                reason = error.args[0].str()
                raise Refused(f"cannot create topic {name!r}: {reason}") from error


def _topics_of(stage: Stage) -> Iterator[NewTopic]:
    keep_ms = str(max(_KEEP_MS_MIN, _KEEP_FACTOR * stage.remember_ms))
    topics = stage.topics
    # The broker's time decides what is a repetition, not that of each producer.
    stamped = {"message.timestamp.type": "LogAppendTime", "retention.ms": keep_ms}
    yield NewTopic(topics.input, stage.workers, config=stamped)
    yield NewTopic(topics.results, stage.workers, config={"retention.ms": keep_ms})
    yield NewTopic(topics.dead, 1, config={"retention.ms": keep_ms})
    if stage.gather is not None:
        # The broker's time decides which items came within their time.
        yield NewTopic(stage.gather.topic, stage.workers, config=stamped)
