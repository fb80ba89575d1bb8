"""The server side of private calls: decodes each call of a table, and sends what comes of it."""

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation
from dovetail.wire.calls import Answer, CallTable, Failure, Request, encode_answer, failure_of
from dovetail.wire.connection import Connection
from dovetail.wire.replies import PipelinedReply, Reply


class CallService:
    """A `Dispatch` for the calls of a table; a subclass says how each is answered."""

    def __init__(self, calls: CallTable) -> None:
        self._calls = calls

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        correlation_id, _, message, payloads = self._calls.decode(frame)
        if payloads:
            raise ProtocolViolation(
                f"{len(payloads)} unexpected bytes after a {type(message).__name__}"
            )
        return PipelinedReply.of(self._answered(correlation_id, message))

    async def _answered(self, correlation_id: int, message: Request) -> list[Buffer]:
        answer: Answer | Failure
        try:
            answer = await self._handle(message)
        except DovetailError as error:
            answer = failure_of(error)
        return encode_answer(correlation_id, answer)

    async def _handle(self, message: Request) -> Answer:
        """What is answered to a call. A `DovetailError` travels to the caller."""
        raise NotImplementedError
