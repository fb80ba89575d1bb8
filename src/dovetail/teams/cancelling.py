"""Cancels a job, whether it waits, is delayed, or runs.

A cancel is a record on the pipeline's topic of cancels, under the id of the job. It applies to that
id in all teams of the pipeline, and to the items that were sprayed from it. Every task reads that
topic from its beginning before it takes a job; so any task that works on the job later knows an
acknowledged cancel, whatever dies. The outcome of a job is stored once (`chains`): a cancelled job
ends as `cancelled`, unless it ended before the task read the cancel.

    waits       it ends as `cancelled` when its turn comes
    runs        at once; its process is killed, or notified if its function asks (`JobContext`)
    is delayed  the courier moves it to now (`delays`), and then it waits
    postponed   the same; a cancel also applies to a job postponed before it, however long it waits

A cancel applies to jobs submitted before it, and for `remember` of the team after it: within that
time an id that comes again would count as a repetition anyway. No clock may be wrong by more than
`remember` for that.
"""

from collections import OrderedDict
from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from dovetail.errors import InvalidInput, Uncertain
from dovetail.foreign import shown
from dovetail.kafka.client.brokers import Brokers
from dovetail.teams.envelope import JOB_ID_BYTES_MAX, Job, checked_id, key_of
from dovetail.teams.graph import cancels_topic, checked_name
from dovetail.teams.topics import cancels_of, create

#: Why a job was cancelled is a sentence.
REASON_CHARACTERS_MAX = 500
#: The most that librdkafka takes for every request.
TIMEOUT_S_MAX = 3_600
#: Ids that are remembered; the oldest go first.
CANCELS_MAX = 1_000_000


def cancel(
    pipeline: str,
    job_id: str,
    bootstrap: str,
    *,
    reason: str = "",
    timeout_s: float = 30.0,
    config: Mapping[str, str] | None = None,
) -> None:
    """Cancels a job of a pipeline; durable when it returns. Cancelling again changes nothing.

    Nobody knows here whether there is such a job: its outcome says what became of it. `config` has
    TLS and login, by librdkafka's names. Raises `InvalidInput` for what is not an id, and
    `Uncertain` if the cancel may or may not be stored.
    """
    checked_name(pipeline)
    checked_timeout_s(timeout_s)
    key = key_of(checked_id(job_id))
    if not isinstance(reason, str):
        raise InvalidInput(f"the reason {shown(reason)} is not text")
    if len(reason) > REASON_CHARACTERS_MAX:
        raise InvalidInput(
            f"the reason has {len(reason)} characters; the limit is {REASON_CHARACTERS_MAX}"
        )
    try:
        text = reason.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the reason {reason[:40]!r} is not Unicode text: {error}") from error

    settings = Brokers.at(bootstrap, config).for_librdkafka()
    topic = cancels_topic(pipeline)
    create(AdminClient(settings), [cancels_of(pipeline)], timeout_s=timeout_s)
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            **settings,
            "enable.idempotence": True,
            "delivery.timeout.ms": max(1, int(timeout_s * 1000)),
        }
    )
    producer.produce(topic, text, key, on_delivery=on_delivery)
    left = producer.flush(timeout_s)
    if failed or left:
        why = failed[0].str() if failed else f"no answer within {timeout_s:g} s"
        raise Uncertain(
            f"the cancel of job {job_id!r} may or may not be stored on {topic!r}: {why}. Cancel it "
            "again"
        )


def checked_timeout_s(given: float) -> float:
    """How long a broker's answer is waited for. Raises `InvalidInput`."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 0 < given <= TIMEOUT_S_MAX:
        raise InvalidInput(
            f"timeout_s={shown(given)} must be seconds, more than 0 and at most {TIMEOUT_S_MAX}"
        )
    return given


class Cancels:
    """Which ids were cancelled, and when. Pure."""

    def __init__(self) -> None:
        self._at_ms: OrderedDict[bytes, tuple[int, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at_ms)

    def note(self, key: bytes, *, at_ms: int, reason: str) -> None:
        """A cancel, as the topic has it; the last one of an id counts. Others may write there, too:
        what `cancel` does not write is left out, or cut."""
        if len(key) > JOB_ID_BYTES_MAX:
            return
        self._at_ms[key] = (at_ms, reason[:REASON_CHARACTERS_MAX])
        self._at_ms.move_to_end(key)
        if len(self._at_ms) > CANCELS_MAX:
            self._at_ms.popitem(last=False)

    def reason(self, job: Job, *, at_ms: int, remember_ms: int) -> str | None:
        """Why a job is cancelled that came at a time; None if it is not."""
        if not self._at_ms:
            return None
        born_ms = job.since_ms or at_ms
        for key in keys_of(job):
            found = self._at_ms.get(key)
            if found is not None and born_ms < found[0] + remember_ms:
                return found[1] or "cancelled"
        return None


def keys_of(job: Job) -> tuple[bytes, ...]:
    """The ids whose cancel is the job's: its own, and that of the job it was made from."""
    return (job.key,) if job.parent is None else (job.key, key_of(job.parent))
