"""The front end: submit jobs and read their outcomes from plain Python, without Spark.

    with FrontEnd(orders, "broker:9092") as front:
        job_id = front.submit({"sku": "A-7"})                stored when it returns
        front.ask({"sku": "A-7"}, timeout_s=30)              waits for the result
        for outcome in front.results("ship", idle_s=5): ...  as they come

Promise of `submit`: when it returns, the job is stored once, as durably as the topic is; transient
failures are retried until `timeout_s`. If it raises `Uncertain`, the job may or may not be stored:
submit it again under the same id, and it is done once (T4). If you need that, choose the job id.

Not here: running jobs. A front end needs no running master; jobs wait in their topic.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from dovetail import tracing
from dovetail.errors import InvalidInput, Refused, Unavailable, Uncertain
from dovetail.kafka.client.brokers import Brokers
from dovetail.teams.codecs import Codec
from dovetail.teams.envelope import Job, JobId, checked_id
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import (
    KIND,
    POSTPONED,
    RECORD_BYTES_MAX,
    Failure,
    Outcome,
    outcome_of,
)

#: How long a submission is tried; Kafka's delivery.timeout.ms.
TIMEOUT_S = 120.0
_POLL_S = 0.1


class JobFailed(Refused):
    """The job that was asked for ended in dead letters."""

    def __init__(self, outcome: Outcome) -> None:
        assert outcome.failure is not None
        self.outcome = outcome
        failure: Failure = outcome.failure
        super().__init__(
            f"team {outcome.team!r} gave up job {outcome.id!r} after {outcome.attempts} attempts: "
            f"{failure.kind}: {failure.reason}"
        )


class FrontEnd:
    """Submits jobs to the teams of a pipeline, and reads their outcomes."""

    def __init__(
        self,
        pipeline: Pipeline,
        bootstrap: str,
        *,
        timeout_s: float = TIMEOUT_S,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`config` has TLS and login, by librdkafka's names. Raises `InvalidInput`."""
        self._pipeline, self._timeout_s = pipeline, timeout_s
        self._config = Brokers.at(bootstrap, config).for_librdkafka()
        self._producer = Producer(
            {
                **self._config,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": int(timeout_s * 1000),
                "partitioner": "murmur2_random",
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits until all jobs are acknowledged."""
        self._producer.flush(self._timeout_s)

    def submit(
        self,
        payload: Any,
        job_id: str | None = None,
        *,
        team: str | None = None,
        traceparent: str | None = None,
    ) -> JobId:
        """Stores a job for a team (by default the first of the pipeline); returns its id.

        Raises `InvalidInput` for a payload that cannot be sent, and `Uncertain` if the job may or
        may not be stored.
        """
        return self._submit([(payload, job_id)], team, traceparent)[0]

    def submit_many(
        self,
        payloads: Iterable[Any],
        job_ids: Iterable[str] | None = None,
        *,
        team: str | None = None,
    ) -> list[JobId]:
        """Stores jobs; all are acknowledged when it returns. Raises as `submit` does."""
        listed = list(payloads)
        names = [None] * len(listed) if job_ids is None else list(job_ids)
        if len(names) != len(listed):
            raise InvalidInput(f"{len(listed)} payloads and {len(names)} ids; give each its own id")
        return self._submit(list(zip(listed, names, strict=True)), team, None)

    def results(
        self,
        team: str | None = None,
        *,
        since: str = "earliest",
        idle_s: float | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes of a team as they come, failures among them; ends after `idle_s` of silence."""
        topic, name = self._pipeline.topics(team).results, self._pipeline.team(team).name
        with _Reader(self._config, [topic], at_end=since == "latest") as reader:
            quiet_since = time.monotonic()
            while idle_s is None or time.monotonic() - quiet_since < idle_s:
                for message in reader.poll():
                    quiet_since = time.monotonic()
                    if (outcome := _outcome(name, message)) is not None:
                        yield outcome

    def decoded(self, outcome: Outcome) -> Any:
        """The result of an outcome. Raises `JobFailed`."""
        if not outcome.ok:
            raise JobFailed(outcome)
        return self._codec(outcome.team).decoder()(outcome.payload)

    def ask(
        self,
        payload: Any,
        job_id: str | None = None,
        *,
        team: str | None = None,
        result_of: str | None = None,
        timeout_s: float = 60.0,
    ) -> Any:
        """Submits a job and waits for its final result.

        That is the result of `result_of`, or of any team at which the job's own id ends. A job
        that was done before under this id is not done again; its result is looked up.

        Raises `JobFailed` if a team gives it up, `Uncertain` if no result came in time.
        """
        ends = self._pipeline.ends(team) if result_of is None else [result_of]
        teams = {self._pipeline.topics(name).results: name for name in self._pipeline.teams}
        for name in ends:
            self._pipeline.team(name)

        # The result of a job whose id is known may be there already.
        with _Reader(self._config, list(teams), at_end=job_id is None) as reader:
            wanted = self.submit(payload, job_id, team=team)
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline:
                for message in reader.poll():
                    outcome = _outcome(teams[message.topic() or ""], message)
                    if outcome is None:
                        continue
                    if outcome.id == wanted and (outcome.team in ends or not outcome.ok):
                        return self.decoded(outcome)

        raise Uncertain(
            f"job {wanted!r} has no result from {' or '.join(ends)} after {timeout_s:g} s; it is "
            "stored and will be done. Is a master running? (dovetail pipeline run)"
        )

    def _codec(self, team: str | None) -> Codec:
        return self._pipeline.team(team).codec

    def _submit(
        self, given: list[tuple[Any, str | None]], team: str | None, traceparent: str | None
    ) -> list[JobId]:
        encode = self._codec(team).encoder()
        topic = self._pipeline.topics(team).input
        context = traceparent or tracing.traceparent()
        trace = None if context is None else context.encode()
        # All are checked before the first one is sent.
        jobs = [_job(encode, payload, job_id, trace) for payload, job_id in given]

        failed: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        for job in jobs:
            self._produce(topic, job, on_delivery)
        left = self._producer.flush(self._timeout_s)
        if failed or left:
            reason = failed[0].str() if failed else f"no answer within {self._timeout_s:g} s"
            raise Uncertain(
                f"{len(failed) + left} of {len(jobs)} jobs may or may not be stored on "
                f"{topic!r}: {reason}. Submit them again under the same ids"
            )
        return [job.id for job in jobs]

    def _produce(
        self, topic: str, job: Job, on_delivery: Callable[[KafkaError | None, Message], None]
    ) -> None:
        record: dict[str, Any] = {"key": job.key, "value": job.payload, "headers": job.headers()}
        while True:
            try:
                self._producer.produce(topic, **record, on_delivery=on_delivery)
                break
            except BufferError:
                self._producer.poll(_POLL_S)
        self._producer.poll(0)


class _Reader:
    """Reads topics to their ends and on, without a group."""

    def __init__(self, config: dict[str, Any], topics: list[str], *, at_end: bool) -> None:
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"dovetail-frontend-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            self._consumer.assign(self._positions(topics, at_end=at_end))
        except KafkaException as error:
            self._consumer.close()
            raise Unavailable(f"cannot read {', '.join(topics)}: {error.args[0].str()}") from error

    def _positions(self, topics: list[str], *, at_end: bool) -> list[TopicPartition]:
        found = []
        for topic in topics:
            partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
            for number in sorted(partitions):
                place = TopicPartition(topic, number)
                low, high = self._consumer.get_watermark_offsets(place, timeout=30)
                found.append(TopicPartition(topic, number, high if at_end else low))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.close()

    def poll(self) -> list[Message]:
        """What arrived within a moment. Raises `Unavailable` for a fatal error."""
        messages = []
        for message in self._consumer.consume(1000, timeout=_POLL_S):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.fatal():
                raise Unavailable(f"cannot read {message.topic()}: {error.str()}")
        return messages


def _job(
    encode: Callable[[Any], bytes], value: Any, job_id: str | None, trace: bytes | None
) -> Job:
    payload = encode(value)
    if len(payload) > RECORD_BYTES_MAX:
        raise InvalidInput(
            f"the payload has {len(payload)} bytes; the limit is {RECORD_BYTES_MAX}. Store it "
            "elsewhere and submit a reference to it"
        )
    name = JobId(uuid.uuid4().hex) if job_id is None else checked_id(job_id)
    return Job(name, payload, traceparent=trace)


def _outcome(team: str, message: Message) -> Outcome | None:
    """The outcome in a record; None if the record says that the job is tried again later."""
    given: list[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]
    headers = [(name, value or b"") for name, value in given]
    if (KIND, POSTPONED) in headers:
        return None
    return outcome_of(
        team,
        dead=any(name == KIND for name, _ in headers),
        place=f"{message.topic()}-{message.partition()}-{message.offset()}",
        key=message.key(),
        value=message.value(),
        headers=headers,
    )
