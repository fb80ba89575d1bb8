"""The front end: submit jobs and read their outcomes from plain Python, without Spark.

    with FrontEnd(orders, "broker:9092") as front:
        job_id = front.submit({"sku": "A-7"})                stored when it returns
        front.ask({"sku": "A-7"}, timeout_s=30)              waits for the result
        for outcome in front.results("ship", idle_s=5):      as they come
            print(outcome.id, outcome.result)

Promise of `submit`: when it returns, the job is stored once, as durably as the topic is; transient
failures are retried until `timeout_s`. If it raises `Uncertain`, the job may or may not be stored:
submit it again under the same id, and it is done once (T4). If you need that, choose the job id.

Where reading begins: `ask` notes the ends of the results topics before it submits. If the id turns
out to be known, it looks for the outcome from the time on at which the job was accepted
(`repetition`). `results` begins with the first job of this front end, or now if it has submitted
none. Neither reads from the beginning of the topics, unless asked to.

Not here: running jobs. A front end needs no running master; jobs wait in their topic, which the
first submission creates if the pipeline was never started.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer

from dovetail import tracing
from dovetail.errors import InvalidInput, TopicUnknown, Unavailable, Uncertain
from dovetail.foreign import encoded
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, Partition, client_of
from dovetail.kafka.client.librdkafka import meaning_of
from dovetail.teams.cancelling import cancel, checked_timeout_s
from dovetail.teams.envelope import ATTEMPTS, Job, JobId, checked_id, key_of
from dovetail.teams.front.outcome_reader import Reader, ends_of, headers_of, since, window
from dovetail.teams.front.repetition import first_accepted
from dovetail.teams.front.submitted import Submitted
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import KIND, POSTPONED, RECORD_BYTES_MAX, Outcome, outcome_of
from dovetail.teams.topics import create_topics

#: How long a submission is tried; Kafka's delivery.timeout.ms.
TIMEOUT_S = 120.0
_POLL_S = 0.1
#: How long storing a job may take at least, however short its result is waited for: what is stored
#: says more than what may be.
_STORE_S_MIN = 5.0
#: How long the first submission asks for its topics, of a broker that does not answer.
_LOOK_S = 5.0
#: Between two tries of jobs that a broker refused for the moment.
_PAUSE_S = 0.1


class FrontEnd:
    """Submits jobs to the teams of a pipeline, and reads their outcomes. Safe between threads."""

    def __init__(
        self,
        pipeline: Pipeline,
        bootstrap: str,
        *,
        timeout_s: float = TIMEOUT_S,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`config` has TLS and login, by librdkafka's names. Raises `InvalidInput`."""
        self._pipeline, self._timeout_s = pipeline, checked_timeout_s(timeout_s)
        self._brokers = Brokers.at(bootstrap, config)
        #: When the first job was stored.
        self._since_ms: int | None = None
        #: By process: in a fork the one of its parent has no threads, and would store nothing. That
        #: one is kept, because putting it away there would hang.
        self._producers: dict[int, Producer] = {}
        self._topics_seen: set[str] = set()
        self._producer()  # Now: its first id takes half a second, in which jobs would wait.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits until all jobs are acknowledged."""
        if (producer := self._producers.get(os.getpid())) is not None:
            producer.flush(self._timeout_s)

    # --- jobs ------------------------------------------------------------------------------------

    def submit(
        self,
        payload: Any,
        job_id: str | None = None,
        *,
        team: str | None = None,
        traceparent: str | None = None,
    ) -> Submitted:
        """Stores a job for a team (by default the first of the pipeline); returns its id.

        Raises `InvalidInput` for a payload that cannot be sent, `Uncertain` if the job may or may
        not be stored, and why the broker refuses it.
        """
        return self._submit([(payload, job_id)], team, traceparent, self._timeout_s)[0]

    def submit_many(
        self,
        payloads: Iterable[Any],
        job_ids: Iterable[str] | None = None,
        *,
        team: str | None = None,
    ) -> list[Submitted]:
        """Stores jobs; all are acknowledged when it returns. Raises as `submit` does."""
        listed = list(payloads)
        names = [None] * len(listed) if job_ids is None else list(job_ids)
        if len(names) != len(listed):
            raise InvalidInput(f"{len(listed)} payloads and {len(names)} ids; give each its own id")
        return self._submit(list(zip(listed, names, strict=True)), team, None, self._timeout_s)

    def cancel(self, job_id: str, *, reason: str = "") -> None:
        """Cancels a job of this pipeline, in whichever team it is; it ends as `cancelled`.

        A job that has ended before stays as it is. Raises `InvalidInput`, `Uncertain`.
        """
        cancel(
            self._pipeline.name,
            job_id,
            self._brokers.bootstrap,
            reason=reason,
            timeout_s=self._timeout_s,
            config=dict(self._brokers.settings),
        )

    def is_repetition(self, job: Submitted) -> bool:
        """Whether the id of a job that was just submitted was known, so that it is not done again.

        It reads what the job's partition received within `remember`. Raises `Unavailable`.
        """
        return self._accepted_ms(job) is not None

    def _accepted_ms(self, job: Submitted) -> int | None:
        """When the job was accepted that this one repeats; None if it is new."""
        if not job.named:
            return None
        owner = next(
            one
            for name, one in self._pipeline.teams.items()
            if self._pipeline.topics(name).input == job.place[0]
        )
        key = key_of(job.id)

        def look(since_ms: int, below: int) -> Iterator[tuple[int, int]]:
            records = window(self._brokers, job.place, since_ms=since_ms, below=below)
            for offset, at_ms, message in records:
                # With attempts it is a later life of a job, which repeats nothing.
                if message.key() == key and ATTEMPTS not in dict(headers_of(message)):
                    yield offset, at_ms

        return first_accepted(
            look, offset=job.offset, at_ms=job.at_ms, remember_ms=owner.remember_ms
        )

    # --- outcomes --------------------------------------------------------------------------------

    def results(
        self,
        team: str | None = None,
        *,
        since: str | int | None = None,
        follow: bool = True,
        idle_s: float | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes of a team as they come, failures among them; ends after `idle_s` of silence.

        They begin with the first job that this front end submitted, or now if there is none; some
        of the minute before can be among them. `since` is `earliest`, `latest` or a time in
        milliseconds. It is decided here, not when the first one is taken. Without `follow` they end
        with what is there. Raises `InvalidInput`, `TopicUnknown`, `Unavailable`.
        """
        if since not in (None, "earliest", "latest") and not isinstance(since, int):
            raise InvalidInput(
                f"since={since!r}; take 'earliest', 'latest', or milliseconds since the epoch"
            )
        name, topic = self._pipeline.team(team).name, self._pipeline.topics(team).results
        return self._follow(name, self._start(topic, since), follow=follow, idle_s=idle_s)

    def _start(self, topic: str, wanted: str | int | None) -> dict[Partition, int]:
        ends = ends_of(self._brokers, [topic])
        if wanted == "earliest":
            return client_of(self._brokers).offsets(dict.fromkeys(ends, EARLIEST))
        at_ms = wanted if isinstance(wanted, int) else self._since_ms
        if wanted == "latest" or at_ms is None:
            return ends
        return since(self._brokers, ends, at_ms)

    def _follow(
        self, team: str, start: Mapping[Partition, int], *, follow: bool, idle_s: float | None
    ) -> Iterator[Outcome]:
        with Reader(self._brokers, start) as reader:
            quiet_since = time.monotonic()
            while idle_s is None or time.monotonic() - quiet_since < idle_s:
                for message in reader.poll():
                    quiet_since = time.monotonic()
                    if (outcome := self._outcome(team, message)) is not None:
                        yield outcome
                if not follow and not reader.behind:
                    return

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
        that was done before under this id is not done again; its last result is looked up.

        Raises `JobFailed` if a team gives it up, `Uncertain` if no result came in time.
        """
        ends_at = self._pipeline.ends(team) if result_of is None else [result_of]
        for name in ends_at:
            self._pipeline.team(name)
        teams = {self._pipeline.topics(name).results: name for name in self._pipeline.teams}

        deadline = time.monotonic() + timeout_s
        self._make_topics([self._pipeline.topics(team).input, *teams], timeout_s)
        before = ends_of(self._brokers, teams, within_s=timeout_s)
        left_s = min(self._timeout_s, max(_STORE_S_MIN, deadline - time.monotonic()))
        (job,) = self._submit([(payload, job_id)], team, None, left_s)
        accepted_ms = self._accepted_ms(job)
        start = before if accepted_ms is None else since(self._brokers, before, accepted_ms)

        # A dead letter that was replayed has a later outcome, which counts: what was there before
        # is read to its end first.
        looks_back = start != before
        last: tuple[int, Outcome] | None = None
        with Reader(self._brokers, start) as reader:
            while time.monotonic() < deadline and (last is None or (looks_back and reader.behind)):
                for message in reader.poll():
                    outcome = self._outcome(teams[message.topic() or ""], message)
                    if outcome is None or outcome.id != job.id:
                        continue
                    at_ms = message.timestamp()[1]
                    if outcome.team in ends_at or not outcome.ok:
                        last = (at_ms, outcome) if last is None or at_ms >= last[0] else last

        if last is not None:
            return last[1].result
        raise Uncertain(
            f"job {str(job)!r} has no result from {' or '.join(ends_at)} after {timeout_s:g} s; it "
            "is stored and will be done. Is a master running? (dovetail pipeline run)"
        )

    def _outcome(self, team: str, message: Message) -> Outcome | None:
        """The outcome in a record; None if the record says that the job is tried again later."""
        headers = headers_of(message)
        if (KIND, POSTPONED) in headers:
            return None
        return outcome_of(
            team,
            dead=any(name == KIND for name, _ in headers),
            place=f"{message.topic()}-{message.partition()}-{message.offset()}",
            key=message.key(),
            value=message.value(),
            headers=headers,
            codec=self._pipeline.team(team).codec,
        )

    # --- sending ---------------------------------------------------------------------------------

    def _submit(
        self,
        given: list[tuple[Any, str | None]],
        team: str | None,
        traceparent: str | None,
        timeout_s: float,
    ) -> list[Submitted]:
        encode = self._pipeline.team(team).codec.encoder()
        topic = self._pipeline.topics(team).input
        context = traceparent or tracing.traceparent()
        trace = None if context is None else encoded(context, "traceparent")
        # All are checked before the first one is sent.
        jobs = [_job(encode, payload, job_id, trace) for payload, job_id in given]
        self._make_topics([topic], timeout_s)

        sending = _Sending(topic, jobs, [job_id is not None for _, job_id in given])
        deadline = time.monotonic() + timeout_s
        producer = self._producer()
        while True:
            for number in sending.missing():
                _produce(producer, sending, number)
            producer.flush(timeout_s)
            # A broker that does not lead the partition yet has not stored the job.
            if not sending.may_pass() or time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_S)

        stored = sending.result(timeout_s)
        if self._since_ms is None and stored:
            self._since_ms = min(one.at_ms for one in stored)
        return stored

    def _producer(self) -> Producer:
        made = self._producers.get(os.getpid())
        if made is not None:
            return made
        config = {
            **self._brokers.for_librdkafka(),
            "enable.idempotence": True,
            "linger.ms": 2,
            "delivery.timeout.ms": max(1, int(self._timeout_s * 1000)),
            "partitioner": "murmur2_random",
        }
        # Of two threads that make one, the first decides.
        return self._producers.setdefault(os.getpid(), Producer(config))

    def _make_topics(self, needed: list[str], within_s: float) -> None:
        """Creates the pipeline's topics if one of these is missing.

        A broker that creates a topic because somebody writes to it would give it one partition,
        and the team that many workers.
        """
        if self._topics_seen.issuperset(needed):
            return
        try:
            client_of(self._brokers).partitions(needed, timeout_s=min(_LOOK_S, within_s))
        except Unavailable:
            return  # What is sent next waits for the broker, and says what became of it.
        except TopicUnknown:
            settings = dict(self._brokers.settings)
            create_topics(self._pipeline, self._brokers.bootstrap, config=settings)
        self._topics_seen.update(needed)


class _Sending:
    """Jobs on their way: which are stored, and why others are not."""

    def __init__(self, topic: str, jobs: list[Job], named: list[bool]) -> None:
        self.topic, self.jobs, self._named = topic, jobs, named
        self._stored: dict[int, Submitted] = {}
        self._errors: dict[int, KafkaError] = {}

    def missing(self) -> list[int]:
        """Those that are not stored."""
        self._errors.clear()
        return [number for number in range(len(self.jobs)) if number not in self._stored]

    def reporter(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        """What takes the broker's answer for a job."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._errors[number] = error
                return
            place, offset = _place(message)
            self._stored[number] = Submitted.of(
                self.jobs[number].id,
                place,
                offset,
                at_ms=message.timestamp()[1],
                named=self._named[number],
            )

        return delivered

    def may_pass(self) -> bool:
        """Whether all that failed was answered by a broker, and can succeed later."""
        answered = len(self._errors) + len(self._stored) == len(self.jobs)
        return bool(self._errors) and answered and all(map(_passes, self._errors.values()))

    def result(self, timeout_s: float) -> list[Submitted]:
        """All of them, stored. Raises why they are not."""
        left = len(self.jobs) - len(self._stored)
        if not left:
            return [self._stored[number] for number in range(len(self.jobs))]
        doing = f"submitting to {self.topic!r}, {left} of {len(self.jobs)} jobs are not stored"
        meanings = [meaning_of(doing, error) for error in self._errors.values()]
        refused = [one for one in meanings if not one.retriable]
        if len(refused) == left:
            raise refused[0]

        error = next(iter(self._errors.values()), None)
        reason = f"no answer within {timeout_s:g} s" if error is None else error.str()
        raise Uncertain(
            f"{left} of {len(self.jobs)} jobs may or may not be stored on {self.topic!r}: "
            f"{reason}. Submit them again under the same ids"
        )


def _produce(producer: Producer, sending: _Sending, number: int) -> None:
    job = sending.jobs[number]
    record: dict[str, Any] = {"key": job.key, "value": job.payload, "headers": job.headers()}
    while True:
        try:
            producer.produce(sending.topic, **record, on_delivery=sending.reporter(number))
            break
        except BufferError:
            producer.poll(_POLL_S)
    producer.poll(0)


def _passes(error: KafkaError) -> bool:
    """Whether a broker answered, and will answer differently soon."""
    return error.code() > 0 and meaning_of("", error).retriable


def _place(message: Message) -> tuple[Partition, int]:
    topic, number, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record that was stored"
    assert number is not None, "a record that was stored"
    assert offset is not None, "a record that was stored"
    return (topic, number), offset


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
    return Job(key_of(name), payload, traceparent=trace)
