"""What a client must be allowed, to ask what it asks (R4): the one table.

A timeline is a topic named `timeline:NAME` in access rules. A producer writes, a consumer reads;
whoever sees bodies must be allowed to read.
"""

from dovetail.access import Access, Kind, Operation, timeline_name
from dovetail.timeline import frames

_OPERATIONS: dict[type[frames.Request], Operation] = {
    frames.Create: Operation.CREATE,
    frames.Drop: Operation.DELETE,
    frames.Describe: Operation.DESCRIBE,
    frames.Cluster: Operation.DESCRIBE,
    frames.Schedules: Operation.DESCRIBE,
    frames.Close: Operation.DESCRIBE,
    frames.Pause: Operation.DESCRIBE,
    frames.Report: Operation.DESCRIBE,
    frames.Consume: Operation.READ,
    frames.Extend: Operation.READ,
    frames.ReleaseAll: Operation.READ,
    frames.Delete: Operation.READ,
    frames.Held: Operation.READ,
    frames.LookUp: Operation.READ,
    frames.Peek: Operation.READ,
    frames.Dead: Operation.READ,
    frames.Insert: Operation.WRITE,
    frames.Cancel: Operation.WRITE,
    frames.Move: Operation.WRITE,
    frames.Replay: Operation.WRITE,
    frames.DropDead: Operation.WRITE,
    frames.PutSchedule: Operation.WRITE,
    frames.DropSchedule: Operation.WRITE,
}


def demand(access: Access, message: frames.Request, timeline: str) -> None:
    """Raises `Forbidden` if the client may not ask that of this timeline."""
    operation = _OPERATIONS.get(type(message))
    if isinstance(message, frames.Open):
        operation = Operation.READ if message.lease_ms else Operation.WRITE
    if operation is not None:
        access.demand(operation, Kind.TOPIC, timeline_name(timeline))


def what_is_visible(access: Access, listed: frames.Listed) -> frames.Listed:
    """The timelines that the client may know of."""
    return frames.Listed(
        [
            (name, state)
            for name, state in listed.timelines
            if access.allows(Operation.DESCRIBE, Kind.TOPIC, timeline_name(name))
        ]
    )
