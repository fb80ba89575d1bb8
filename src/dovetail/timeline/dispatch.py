"""The dispatcher of timelines: frames in, answers out, by one table.

`ROUTES` gives for each request the permission that the client needs (R4) and the handler. In access
rules a timeline is a topic named `timeline:NAME`. A producer needs to write, a consumer to read,
and so does anyone who sees bodies. A request without an operation is open to everybody.

A request that fails is answered with an error that says whose fault it is.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from dovetail.access import EVERYTHING, Access, Kind, Operation, timeline_name
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError
from dovetail.timeline import frames
from dovetail.timeline.metrics import TimelineMetrics
from dovetail.timeline.requests import Requests
from dovetail.wire import PipelinedReply
from dovetail.wire.calls import Answer, Call, Request, encode_answer, failure_of


class Route(NamedTuple):
    """A request's name in metrics, what it needs, and what handles it."""

    name: str
    operation: Operation | None
    handler: Callable[[Requests, Any], Awaitable[Answer]]


ROUTES: Final[Mapping[type[Request], Route]] = {
    frames.Create: Route("create", Operation.CREATE, Requests.create),
    frames.Alter: Route("alter", Operation.ALTER, Requests.alter),
    frames.Purge: Route("purge", Operation.DELETE, Requests.purge),
    frames.Drop: Route("drop", Operation.DELETE, Requests.drop),
    frames.ListTimelines: Route("list", None, Requests.list_timelines),
    frames.Cluster: Route("cluster", Operation.DESCRIBE, Requests.cluster),
    frames.Describe: Route("describe", Operation.DESCRIBE, Requests.describe),
    frames.Open: Route("open", Operation.READ, Requests.open),
    frames.Close: Route("close", Operation.DESCRIBE, Requests.close),
    frames.Pause: Route("pause", Operation.DESCRIBE, Requests.pause),
    frames.Report: Route("report", Operation.DESCRIBE, Requests.report),
    frames.Insert: Route("insert", Operation.WRITE, Requests.insert),
    frames.Consume: Route("consume", Operation.READ, Requests.consume),
    frames.Extend: Route("extend", Operation.READ, Requests.extend),
    frames.ReleaseAll: Route("release", Operation.READ, Requests.release),
    frames.Delete: Route("delete", Operation.READ, Requests.delete),
    frames.Held: Route("held", Operation.READ, Requests.held),
    frames.LookUp: Route("look_up", Operation.READ, Requests.look_up),
    frames.Peek: Route("peek", Operation.READ, Requests.peek),
    frames.Cancel: Route("cancel", Operation.WRITE, Requests.cancel),
    frames.Move: Route("move", Operation.WRITE, Requests.move),
    frames.Dead: Route("dead", Operation.READ, Requests.dead),
    frames.Replay: Route("replay", Operation.WRITE, Requests.replay),
    frames.Select: Route("select", Operation.WRITE, Requests.select),
    frames.DropDead: Route("drop_dead", Operation.WRITE, Requests.drop_dead),
    frames.PutSchedule: Route("put_schedule", Operation.WRITE, Requests.put_schedule),
    frames.DropSchedule: Route("drop_schedule", Operation.WRITE, Requests.drop_schedule),
    frames.Schedules: Route("schedules", Operation.DESCRIBE, Requests.schedules),
}


class Dispatcher:
    """Answers the frames of timelines."""

    def __init__(self, requests: Requests, metrics: TimelineMetrics) -> None:
        self._requests = requests
        self._metrics = metrics

    def __call__(self, frame: memoryview, access: Access) -> PipelinedReply:
        """Raises `ProtocolViolation` if the frame holds no request."""
        call = frames.CALLS.decode(frame)
        return PipelinedReply.of(self._encoded(call, access))

    async def answer(self, message: Request, access: Access = EVERYTHING) -> Answer:
        """What a request is answered with. Raises `DovetailError`."""
        route = ROUTES[type(message)]
        # A session that is over has no timeline; its request is refused for that.
        name = self._requests.timeline_of(message) or getattr(message, "timeline", "")
        operation = route.operation
        if isinstance(message, frames.Open) and not message.lease_ms:
            operation = Operation.WRITE  # It opens a producer.
        if name and operation is not None:
            access.demand(operation, Kind.TOPIC, timeline_name(name))
        if isinstance(message, frames.Select):
            # Which ones fit says what is in them.
            access.demand(Operation.READ, Kind.TOPIC, timeline_name(message.timeline))
        if isinstance(message, frames.Create | frames.Alter) and (target := _dead_to(message)):
            # Or whoever may alter a timeline could write to any topic.
            access.demand(Operation.WRITE, Kind.TOPIC, target)
        if name:
            await self._requests.find(name)
        answer = await route.handler(self._requests, message)
        return _visible(access, answer) if isinstance(answer, frames.Listed) else answer

    async def _encoded(self, call: Call, access: Access) -> list[Buffer]:
        request = ROUTES[type(call.message)].name
        timeline = self._requests.timeline_of(call.message)
        try:
            answer = await self.answer(call.message, access)
        except DovetailError as error:
            self._metrics.request(request, timeline, failed=True)
            return encode_answer(call.correlation_id, failure_of(error))
        self._metrics.request(request, timeline, failed=False)
        return encode_answer(call.correlation_id, answer)


def _dead_to(message: frames.Create | frames.Alter) -> str:
    """Where dead letters are to go, as access rules name it; empty if it does not say."""
    if isinstance(message, frames.Create):
        return message.config.dead_to
    return str(message.settings.get("dead_to", ""))


def _visible(access: Access, listed: frames.Listed) -> frames.Listed:
    """The timelines that the client may know of."""
    return frames.Listed(
        [
            (name, state)
            for name, state in listed.timelines
            if access.allows(Operation.DESCRIBE, Kind.TOPIC, timeline_name(name))
        ]
    )
