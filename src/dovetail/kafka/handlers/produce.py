"""Produce and InitProducerId."""

import asyncio
from collections.abc import Callable
from functools import partial

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.buffers import Buffer
from dovetail.errors import (
    DovetailError,
    InvalidBatch,
    InvalidInput,
    Uncertain,
)
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.transaction_codes import coordinator_of, transaction_code
from dovetail.log.admission import admit
from dovetail.log.examining import Admit, Store
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.transactions.types import Identity, Place, TransactionError
from dovetail.prompt_future import PromptFuture, when_done
from dovetail.record_batch import TRANSACTIONAL, BatchHeader, check_batch
from dovetail.wire import PipelinedReply

#: A client's timeout is honoured up to this; a future must not live for ever.
TIMEOUT_MS_MAX = 10 * 60 * 1000

#: 1 and -1 mean the same here: everything is synced to the ack quorum.
_ACKS = (-1, 0, 1)

Encode = Callable[[m.ProduceResponse], list[Buffer]]
_Outcome = Appended | DovetailError

#: From these versions of Produce on, a client names topics by id, adds partitions to its
#: transaction by writing, and knows that it has to abort; from this one of InitProducerId on, it
#: knows that it is fenced.
_BY_ID_SINCE = 13
_ADDS_SINCE = 12
_ABORTABLE_SINCE = 11
_FENCED_SINCE = 4


class _Production:
    """One request on its way: an outcome for each partition, in the request's order."""

    def __init__(
        self,
        backend: Backend,
        call: Call,
        request: m.ProduceRequest,
        encode: Encode,
        close: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reply: PromptFuture[list[Buffer] | None] = PromptFuture(loop)
        #: Done when no batch is on its way any more, which can be after the reply.
        self.stored: asyncio.Future[None] = loop.create_future()
        self._backend = backend
        self._access = call.access
        self._version = call.api_version
        self._request = request
        self._encode = encode
        self._close = close
        self._outcomes: dict[tuple[int, int], _Outcome] = {}
        self._missing = sum(len(topic.partition_data) for topic in request.topic_data)
        timeout_s = min(max(request.timeout_ms, 1), TIMEOUT_MS_MAX) / 1000
        backend.time_outs.add(self._finish, timeout_s)

    def begin(self) -> None:
        """Puts every batch in line."""
        if not self._missing:
            self._end()
        for at_topic, topic in enumerate(self._request.topic_data):
            for at, partition in enumerate(topic.partition_data):
                place = (at_topic, at)
                try:
                    future = self._append(self._name_of(topic), partition)
                except DovetailError as error:
                    self._note(place, error)
                else:
                    when_done(future, partial(self._on_done, place))

    def _name_of(self, topic: m.ProduceRequestTopic) -> str:
        """Raises `TopicIdUnknown` for the id of a topic that was deleted or recreated."""
        if self._version < _BY_ID_SINCE:
            return topic.name
        return self._backend.log.topic_by_id(topic.topic_id.hex()).name

    def _append(
        self, topic: str, partition: m.ProduceRequestPartition
    ) -> "asyncio.Future[Appended]":
        if self._request.acks not in _ACKS:
            raise InvalidInput(f"acks is {self._request.acks}; it must be 0, 1 or -1 (all)")
        self._access.demand(Operation.WRITE, Kind.TOPIC, topic)
        log = self._backend.log
        found = log.partition(topic, partition.index)
        if log.topic(topic).internal:
            raise InvalidInput(f"topic {topic!r} is internal; only the node writes to it")
        if partition.records is None:
            raise InvalidBatch(f"no records for {topic}-{partition.index}")
        config = found.config
        header = check_batch(partition.records, bytes_max=config.batch_bytes_max)

        said: Admit | None = None
        if config.examines:
            now_ms, all_acks = self._backend.clock.wall_ms(), self._request.acks == -1
            said = partial(admit, config=config, all_acks=all_acks, now_ms=now_ms)
        append: Store = found.append
        if config.due:
            append = partial(self._backend.due.append, found, topic, partition.index)
        if self._request.transactional_id is not None or header.attributes & TRANSACTIONAL:
            append = self._in_transaction(found, Place(topic, partition.index), header, append)
        if config.due and header.attributes & TRANSACTIONAL:
            append = partial(self._backend.due.append_now, found, append, topic, partition.index)
        return log.examiner.append(
            found,
            partition.records,
            header,
            admit=said,
            store=partial(self._store, append, topic),
        )

    def _in_transaction(
        self, found: Partition, place: Place, header: BatchHeader, append: Store
    ) -> Store:
        """Asks the coordinator before the first batch; a producer of KIP-890 joins with it."""
        transactional_id = self._request.transactional_id
        if not transactional_id:
            raise InvalidBatch("the request has a transactional batch but no transactional id")
        self._access.demand(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id)
        if not header.attributes & TRANSACTIONAL:
            return append
        return partial(
            self._backend.transactions.verification.append,
            found,
            place,
            transactional_id=transactional_id,
            adds=self._version >= _ADDS_SINCE,
        )

    def _store(
        self, append: Store, topic: str, batch: memoryview, header: BatchHeader
    ) -> "asyncio.Future[Appended]":
        """Appends a batch that was examined; only such ones count."""
        self._backend.metrics.produced(topic, header.record_count, len(batch))
        return append(batch, header)

    def _on_done(self, place: tuple[int, int], done: "asyncio.Future[Appended]") -> None:
        error = done.exception()
        if error is None:
            self._note(place, done.result())
        elif isinstance(error, DovetailError):
            self._note(place, error)
        else:
            raise error

    def _note(self, place: tuple[int, int], outcome: _Outcome) -> None:
        self._outcomes[place] = outcome
        if self._request.acks == 0 and isinstance(outcome, DovetailError):
            # There is no answer to say so. As with Kafka, the client finds its connection closed
            # and asks who leads the partition, instead of losing what else it sends.
            self._close()
        self._missing -= 1
        if self._missing == 0:
            self._end()

    def _end(self) -> None:
        self.stored.set_result(None)  # First: the answer gives the frame's bytes back.
        self._finish()

    def _finish(self) -> None:
        """All is answered, or the disk did not in time: then it may or may not be stored."""
        self._backend.time_outs.discard(self._finish)
        if not self.reply.done():
            self.reply.set_result(self._encode(self._response()))

    def _response(self) -> m.ProduceResponse:
        late = Uncertain("no answer from the storage in time; it may or may not be stored")
        return m.ProduceResponse(
            responses=tuple(
                m.ProduceResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=tuple(
                        self._partition(partition, self._outcomes.get((at_topic, at), late))
                        for at, partition in enumerate(topic.partition_data)
                    ),
                )
                for at_topic, topic in enumerate(self._request.topic_data)
            )
        )

    def _partition(
        self, partition: m.ProduceRequestPartition, outcome: _Outcome
    ) -> m.ProduceResponsePartition:
        if isinstance(outcome, Appended):
            return m.ProduceResponsePartition(
                index=partition.index,
                error_code=ErrorCode.NONE,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.append_time,
            )
        code = self._code(outcome)
        self._backend.metrics.error("Produce", code.name)
        return m.ProduceResponsePartition(
            index=partition.index, error_code=code, base_offset=-1, error_message=str(outcome)
        )

    def _code(self, outcome: DovetailError) -> ErrorCode:
        code = code_of(outcome)
        if code is ErrorCode.INVALID_TXN_STATE and self._version >= _ABORTABLE_SINCE:
            return ErrorCode.TRANSACTION_ABORTABLE
        if self._request.acks not in _ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS
        return ErrorCode.INVALID_TOPIC_EXCEPTION if code is ErrorCode.INVALID_REQUEST else code


def produce(
    backend: Backend,
    call: Call,
    request: m.ProduceRequest,
    encode: Encode,
    close: Callable[[], None],
) -> PipelinedReply:
    """Begins to store the batches; with acks 0 there is no answer, and an error is a `close`.

    The batches are slices of the frame, so its bytes are held until all are stored or refused,
    whatever the client was answered meanwhile.
    """
    production = _Production(backend, call, request, encode, close)
    production.begin()
    if request.acks != 0:
        return PipelinedReply(production.reply, production.stored)
    silence: asyncio.Future[list[Buffer] | None] = asyncio.get_running_loop().create_future()
    silence.set_result(None)
    return PipelinedReply(silence, production.stored)


async def init_producer_id(
    backend: Backend, call: Call, request: m.InitProducerIdRequest
) -> m.InitProducerIdResponse:
    """A new id for an idempotent producer, or that of a transactional one with its next epoch."""
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return m.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return await _init_transactional(backend, call, request, request.transactional_id)
    # As Kafka asks: the old right over the cluster, or the right to write anything at all.
    access = call.access
    if not access.allows(
        Operation.IDEMPOTENT_WRITE, Kind.CLUSTER, CLUSTER_NAME
    ) and not access.allows_some(Operation.WRITE, Kind.TOPIC):
        return m.InitProducerIdResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=-1
        )

    try:
        producer_id = await backend.log.next_producer_id()
    except DovetailError as error:
        return m.InitProducerIdResponse(error_code=code_of(error), producer_epoch=-1)
    return m.InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )


async def _init_transactional(
    backend: Backend, call: Call, request: m.InitProducerIdRequest, transactional_id: str
) -> m.InitProducerIdResponse:
    """Fences the previous owner of the transactional id, and aborts what it left open."""
    code = ErrorCode.NONE
    found: Identity | TransactionError | None = None
    coordinator = coordinator_of(backend, call, Operation.WRITE, transactional_id)
    if isinstance(coordinator, ErrorCode):
        code = coordinator
    elif not 0 < request.transaction_timeout_ms <= backend.transactions.settings.timeout_ms_max:
        code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    else:
        expected = Identity(request.producer_id, request.producer_epoch)
        try:
            found = await coordinator.begin(
                transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                expected=expected if expected.producer_id >= 0 else None,
            )
        except DovetailError:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE

    if isinstance(found, TransactionError):
        code = transaction_code(found, knows_fenced=call.api_version >= _FENCED_SINCE)
    if isinstance(found, Identity):
        return m.InitProducerIdResponse(
            error_code=code, producer_id=found.producer_id, producer_epoch=found.epoch
        )
    return m.InitProducerIdResponse(error_code=code, producer_epoch=-1)
