"""The lane of one output partition: performs its chain's requests, one at a time.

A lane never blocks: `step` is called when its socket has an answer or its time has come. It reports
a transient failure (a leader that moved, a broker that restarts, silence) to the chain as a
refusal, and the chain reads the partition back before it sends anything again; pauses between tries
grow.

Not here: what to write and what an answer means. `chain` decides both.
"""

import time
from contextlib import suppress

from dovetail.errors import (
    BatchTooLarge,
    DovetailError,
    OffsetOutOfRange,
    ProtocolViolation,
    SequenceGap,
    Unavailable,
    Uncertain,
)
from dovetail.kafka.client.client import EARLIEST, KafkaClient, Partition, name_of
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode, error_of
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.spark.fetching import Reader
from dovetail.teams.chains.chain import Chain, ChainBroken, Effect, Read, Send

#: A batch that was acknowledged is readable within the time that replicas take; the broker waits.
_VERIFY_WAIT_MS = 500
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.005, 0.5


def clock_s() -> float:
    """A clock that counts suspension: the age of what an attempt knows does not stop with it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lane:
    """Reads and writes one output partition for a chain."""

    def __init__(self, client: KafkaClient, chain: Chain, place: Partition) -> None:
        self._client, self._chain, self._place = client, chain, place
        self._reader = Reader(client, place)
        self._connection: Connection | None = None
        self._header: RequestHeader | None = None
        self._doing: Read | Send | None = None
        self._asked = False
        self._position = 0
        #: Nothing is tried before this time; what is asked must be answered by the other.
        self._not_before_s = 0.0
        self._answer_by_s = 0.0
        self._pause_s = _PAUSE_S_MIN
        self._failing_since_s: float | None = None

    def close(self) -> None:
        """Gives up what is under way."""
        self._reader.close()
        if self._connection is not None:
            if self._header is None:
                self._client.give_back(self._connection)
            else:
                self._connection.close()
            self._connection = None

    def fileno(self) -> int:
        """The socket that an answer comes on; -1 if none is awaited."""
        if isinstance(self._doing, Read):
            return self._reader.fileno()
        if self._header is None or self._connection is None:
            return -1
        return self._connection.fileno()

    def due_s(self) -> float | None:
        """When `step` must be called, answer or not."""
        if self._doing is None:
            return None
        return self._answer_by_s if self._asked else self._not_before_s

    def do(self, effect: Read | Send) -> list[Effect]:
        """Begins what the chain asks for."""
        assert self._doing is None, "one thing at a time"
        self._doing, self._asked = effect, False
        if isinstance(effect, Read):
            self._position = effect.start
        return self.step(clock_s(), ready=False)

    def step(self, now_s: float, *, ready: bool) -> list[Effect]:
        """Goes on with what is under way; `ready` says that its socket has an answer."""
        if self._doing is None or now_s < self._not_before_s:
            return []
        try:
            if not self._asked:
                return self._ask(now_s)
            if ready:
                return self._sent_answer() if self._header else self._read_answer()
            if now_s >= self._answer_by_s:
                raise Unavailable(f"{name_of(self._place)}: no answer in time")
        except BatchTooLarge as error:
            return self._ended(
                self._chain.on_too_large(self._place, reason=str(error), now_s=now_s)
            )
        except (Unavailable, Uncertain, ProtocolViolation, SequenceGap) as error:
            return self._failed(now_s, error)
        return []

    def _ask(self, now_s: float) -> list[Effect]:
        doing = self._doing
        if isinstance(doing, Send):
            return self._send(doing, now_s)
        assert doing is not None
        wait_ms = 0 if doing.end is None else _VERIFY_WAIT_MS
        self._reader.ask(self._position, wait_ms=wait_ms)
        if self._reader.fileno() < 0:
            raise Unavailable(f"{name_of(self._place)}: no connection to its leader")
        self._asked, self._answer_by_s = True, now_s + self._client.request_s
        return []

    def _send(self, doing: Send, now_s: float) -> list[Effect]:
        if self._connection is None:
            self._connection = self._client.borrow(self._place)
        records = m.ProduceRequestPartition(
            index=self._place[1], records=memoryview(doing.batch.data)
        )
        request = m.ProduceRequest(
            acks=-1,
            timeout_ms=int(self._client.request_s * 1000),
            topic_data=(m.ProduceRequestTopic(name=self._place[0], partition_data=(records,)),),
        )
        # After connecting, which may have taken any time.
        if clock_s() > doing.until_s:
            raise Uncertain(f"{name_of(self._place)}: what is known of it is too old to write")
        self._header = self._connection.send(ApiKey.PRODUCE, request)
        self._asked, self._answer_by_s = True, now_s + self._client.request_s
        return []

    def _sent_answer(self) -> list[Effect]:
        assert self._connection is not None
        assert self._header is not None
        header, self._header = self._header, None
        answer: m.ProduceResponse = self._connection.receive(header)
        one = answer.responses[0].partition_responses[0]
        if one.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._passed()
            return self._ended(self._chain.on_stored(self._place, one.base_offset))
        raise error_of(one.error_code, f"writing to {name_of(self._place)}", one.error_message)

    def _read_answer(self) -> list[Effect]:
        doing = self._doing
        assert isinstance(doing, Read)
        self._asked = False
        try:
            fetched = self._reader.take(self._position)
        except OffsetOutOfRange as error:
            return self._trimmed(error)
        self._passed()

        batches = fetched.batches
        self._position = batches[-1].offset_end if batches else self._position
        effects = self._chain.on_read(
            self._place, batches, seen=self._position, log_start=fetched.log_start
        )
        end = fetched.high_watermark if doing.end is None else doing.end
        if self._position < end:
            # The next step asks on: what goes wrong there must not cost these effects.
            return effects
        self._chain.on_end(self._place)
        return self._ended(effects)

    def _trimmed(self, error: OffsetOutOfRange) -> list[Effect]:
        """Retention was faster, or the partition ends before what was read of it."""
        start = self._client.offsets({self._place: EARLIEST})[self._place]
        if start <= self._position:
            raise ChainBroken(f"{name_of(self._place)} has lost records: {error}") from error
        self._chain.check_start(self._place, log_start=start, now_ms=time.time_ns() // 1_000_000)
        self._position = start
        return []

    def _failed(self, now_s: float, error: DovetailError) -> list[Effect]:
        """Raises the error if it does not pass in time."""
        self._failing_since_s = self._failing_since_s or now_s
        if now_s - self._failing_since_s > self._client.timeout_s:
            raise error
        self._client.forget_leaders()
        self._reader.drop()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        self._connection = self._header = None
        self._asked = False

        self._not_before_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        if isinstance(self._doing, Read):
            return []
        return self._ended(self._chain.on_refused(self._place, reason=str(error), now_s=now_s))

    def _passed(self) -> None:
        self._pause_s, self._failing_since_s = _PAUSE_S_MIN, None

    def _ended(self, effects: list[Effect]) -> list[Effect]:
        self._doing, self._asked = None, False
        return effects
