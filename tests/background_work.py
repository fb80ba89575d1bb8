"""All background work by name: where a failure is planted, and what a failure of it means (R5).

`test_house.py` compares these tables with the calls of `dovetail.background` in the source, so
that a new name needs a line here; `tests/process/test_planted_failures.py` plants an unexpected
exception in each piece of lasting work, in a real component of the kind that is named here.
"""

import ast
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

HOUSE = Path(__file__).parent.parent / "src" / "dovetail"

_TASKS, _THREADS = {"start", "keep", "start_task", "keep_task"}, {"start_thread", "keep_thread"}
STARTERS = {*_TASKS, *_THREADS, "Alarm", "later"}


class Place(Enum):
    """The component in which a failure is planted."""

    NODE = "a node of a cluster"
    LONE_NODE = "a node on its own"
    CLIENT = "a client with a consumer"
    RELAY = "a relay"
    REPLICA = "a replica of a shared stream"
    LOG = "a member on a shared log in the coordination service"
    DRIVER = "a driver of teams"
    WORKER = "a worker of teams"
    PRODUCER = "a direct producer of the outbox"
    LEDGER = "a writer of ledgers"


#: Work that lasts, and where it runs. It is started again, unless `ENDS_WITH` has its name.
LASTING = {
    "accept": Place.NODE,
    "broker/compaction": Place.NODE,
    "broker/hand-over": Place.NODE,
    "broker/repair": Place.NODE,
    "broker/upkeep": Place.NODE,
    "client/end": Place.CLIENT,
    "client/extend": Place.CLIENT,
    "client/finish": Place.CLIENT,
    "client/loop": Place.CLIENT,
    "client/report": Place.CLIENT,
    "client/take": Place.CLIENT,
    "client/watch": Place.CLIENT,
    "console/sample": Place.NODE,
    "coordination/commit": Place.LONE_NODE,
    "coordination/expiry": Place.LONE_NODE,
    "coordination/lease": Place.NODE,
    "coordination/mirror": Place.NODE,
    "election/effects": Place.REPLICA,
    "election/lease-lost": Place.REPLICA,
    "election/poll": Place.REPLICA,
    "election/shared-log": Place.LOG,
    "election/tick": Place.REPLICA,
    "election/watch-holder": Place.REPLICA,
    "due/pump": Place.NODE,
    "log/adopt": Place.NODE,
    "log/decide": Place.NODE,
    "log/groups/forget-topic": Place.NODE,
    "log/groups/timer": Place.NODE,
    "log/reconsider": Place.NODE,
    "log/share/locks": Place.NODE,
    "log/topic-work": Place.NODE,
    "log/transactions/end": Place.NODE,
    "log/transactions/timer": Place.NODE,
    "membership/lease": Place.NODE,
    "membership/loss": Place.NODE,
    "node/history": Place.NODE,
    "node/number": Place.NODE,
    "node/sentry": Place.NODE,
    "node/suppressed-lines": Place.NODE,
    "outbox/answers": Place.PRODUCER,
    "outbox/housekeeping": Place.RELAY,
    "outbox/listen": Place.RELAY,
    "outbox/worker": Place.RELAY,
    "storage/commit": Place.LONE_NODE,
    "storage/replace-nodes": Place.LEDGER,
    "storage/scrub": Place.NODE,
    "storage/upkeep": Place.NODE,
    "stream/find-end": Place.REPLICA,
    "stream/handle": Place.REPLICA,
    "stream/lead": Place.REPLICA,
    "stream/read": Place.REPLICA,
    "stream/report": Place.REPLICA,
    "teams/delays": Place.DRIVER,
    "teams/keep-warm": Place.DRIVER,
    "teams/reporter": Place.DRIVER,
    "teams/team-master": Place.DRIVER,
    "teams/work": Place.WORKER,
    "timeline/catalog": Place.NODE,
    "timeline/clocks": Place.NODE,
    "timeline/dead": Place.NODE,
    "timeline/pump": Place.NODE,
    "timeline/report": Place.NODE,
    "timeline/tell": Place.NODE,
    "timeline/upkeep": Place.NODE,
    "timeline/watch": Place.NODE,
    "timeline/window": Place.NODE,
    "timeline/write": Place.LONE_NODE,
    "web/server": Place.LONE_NODE,
    "web/sweep": Place.NODE,
    "wire/connect": Place.CLIENT,
    "wire/deadlines": Place.CLIENT,
    "wire/probe": Place.NODE,
    "wire/sweep": Place.NODE,
}

#: Lasting work that its owner handles in another way than a restart.
ENDS_WITH = {
    "coordination/commit": "the node is not ready for good: what is on disk is not known",
    "coordination/lease": "the lease counts as lost; the node registers under a new one",
    "election/effects": "the member fails: what it said may not be what it keeps",
    "storage/commit": "storage takes itself out",
    "timeline/write": "the timeline's file takes no commands; its requests are answered so",
    "web/server": "the node is not ready for good, and says so to the other nodes",
}

#: Work that comes to an end, and who hears of a failure.
ENDING = {
    "ask": "the caller, from the task itself",
    "due/store": "the producer, whose batch is refused",
    "client/ask": "the caller, from the task itself",
    "client/consumer": "`run` raises it, and `health` names the consumer",
    "client/gather": "the alarm, which calls again",
    "client/handler": "the consumer, as a failed attempt",
    "user/thread": "the caller, from the future: the thread itself raises nothing",
    "client/threads": "nobody needs to: the threads are given up",
    "client/leave": "nobody needs to: the connection is given up",
    "cli/broker": "the node, which ends, and its brokers with it",
    "cli/input": "nobody needs to: it is logged; the broker is safe without its parent",
    "cli/lead": "the command line, which raises it",
    "cli/lead-command": "nobody needs to: the end of its pipe ends the command",
    "cli/display": "the user sees the last table; the teams go on",
    "cli/resolve-host": "the node warns of nothing; it serves all the same",
    "console/close-idle-client": "nobody needs to: the next use makes a new client",
    "console/end-idle-client": "the alarm, which calls again",
    "coordination/etcd-read": "the watch, which goes on with another member",
    "coordination/etcd-watch": "the reader of the watch, who is started again",
    "election/append": "the election, as an append whose outcome is not known",
    "election/campaign": "the election, as a lease that was not taken",
    "election/give-back": "nobody needs to: the lease ends by itself",
    "election/release": "nobody needs to: the lease ends by itself",
    "election/renew": "the election, which reports again",
    "election/send": "the election, which sends again",
    "election/trim": "the next record that makes the log too long",
    "election/wake": "those who wait are woken by the next change",
    "kafka/close-refused": "the alarm, which calls again",
    "kafka/request": "the client, from the connection",
    "log/brokers/leave": "nobody needs to: the broker is elsewhere",
    "kafka/time-out": "the alarm, which calls again",
    "log/coordinators/close": "the clients of a coordinator, whose connections end",
    "log/coordinators/load": "`/readyz`, as a journal that cannot be read; it is read again",
    "log/groups/append": "the member of the group, as a coordinator that is not available",
    "log/mend-again": "the alarm, which calls again",
    "log/ownership": "the partition is claimed again",
    "log/partition": "the partition is given up and taken over anew",
    "log/share/bury": "nobody needs to: dead letters wait for the next write or owner",
    "log/share/claim": "the member that fetches or acknowledges, from the task itself",
    "log/share/write": "members whose acknowledgements wait; the next request claims anew",
    "log/reopen": "the alarm, which calls again",
    "log/roll-again": "the alarm, which calls again",
    "log/transactions/add": "the producer, whose partitions are refused for now",
    "log/transactions/ask": "the producer, whose batch is refused for now",
    "storage/deletions": "the storage node, which sweeps what no chain names",
    "storage/leave": "nobody needs to: the node has left",
    "storage/read": "the reader, who asks the next node",
    "storage/recovery-ask": "the recovery, as a node that did not answer",
    "stream/close": "nobody needs to: the reading is given up",
    "stream/next": "the reader of the stream, which opens it again",
    "stream/sought": "the reader of the stream",
    "teams/job": "the parent of the process, as a job that runs out of time",
    "teams/jobs": "the parent of the process, as one that is silent; it is replaced",
    "teams/master": "the command, which ends with it",
    "teams/replies": "nobody needs to: outcomes go with the next ones",
    "teams/tasks": "the engine, which starts the tasks again",
    "timeline/finish": "the next round of upkeep, which begins it again",
    "timeline/empty-seat": "nobody needs to: the leases end by themselves",
    "timeline/store": "the timeline's next round of upkeep",
    "tracing/end": "nobody needs to: the process ends",
    "wire/let-go": "the alarm, which calls again",
    "web/meet": "nobody needs to: the connection is closed, and its client connects again",
    "wire/meet": "nobody needs to: the connection is closed, and its client connects again",
}


class Start(NamedTuple):
    """A call that starts background work."""

    file: str
    line: int
    function: str
    #: None if it is no literal.
    name: str | None


def starts() -> Iterator[Start]:
    """Every such call in the source."""
    for path in sorted(HOUSE.rglob("*.py")):
        if path.name == "background.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (found := _start_of(node)) is not None:
                yield Start(str(path.relative_to(HOUSE)), node.lineno, *found)


def _start_of(call: ast.Call) -> tuple[str, str | None] | None:
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    given = {word.arg: word.value for word in call.keywords}
    if called not in STARTERS or (called in ("start", "keep") and "name" not in given):
        return None
    name = given.get("name")
    literal = isinstance(name, ast.Constant) and isinstance(name.value, str)
    return called, name.value if literal and isinstance(name, ast.Constant) else None  # type: ignore[return-value]
