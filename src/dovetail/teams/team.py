"""A team: a name, a function, and the policy for running it.

A `Team` is a declaration: it holds no connection and starts nothing. `Pipeline` checks it together
with the others and turns it into the `Stage` that travels to the workers.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Unpack

from dovetail.errors import InvalidInput
from dovetail.given_functions import check_function, check_plain_function
from dovetail.settings import parse_bytes, parse_duration_ms
from dovetail.teams.codecs import Codec, codec_of
from dovetail.teams.connectors import (
    Condition,
    Connector,
    ConnectorKind,
    ConnectorOptions,
    Transform,
)
from dovetail.teams.context import wants_context
from dovetail.teams.outcome import RECORD_BYTES_MAX

#: A name becomes part of names of topics (249 characters at most) and of groups.
_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]{0,59}")
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

WORKERS_MAX = 10_000
CONCURRENCY_MAX = 10_000
ATTEMPTS_MAX = 1_000
BATCH_MAX = 100_000
#: Of a team with a limit, which one task serves.
RUNNING_MAX = 10_000
RATE_PER_S_MAX = 100_000
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)/([smh])")
_RATE_S = {"s": 1, "m": 60, "h": 3600}
BACKOFF_MS_MAX_DEFAULT = 5_000
#: The furthest that a retry is put off.
BACKOFF_MS_MAX = 30 * 24 * 3_600_000
#: The longest delay: the timeline in which jobs wait takes nothing that is due much later.
AFTER_MS_MAX = 3_650 * 24 * 3_600_000
#: A backoff up to here is waited for in memory. A longer one goes through a timeline: what the next
#: attempt at a partition has to read again stays short.
HOLD_MS_MAX = 2_000


class WorkKind(StrEnum):
    """What the function takes and returns: one payload, a list, or a table with a row for each."""

    ITEM = "item"
    BATCH = "batch"
    ARROW = "arrow"
    PANDAS = "pandas"


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, how long and how many at once jobs are tried."""

    timeout_ms: int
    attempts_max: int
    backoff_ms: int
    backoff_ms_max: int
    concurrency: int
    batch_max: int
    result_bytes_max: int
    #: Jobs that begin in a second, and that run at once, across all workers; None: no limit.
    rate_per_s: float | None = None
    running_max: int | None = None

    @property
    def limited(self) -> bool:
        """Whether its partitions must know of each other."""
        return self.rate_per_s is not None or self.running_max is not None

    def backoff(self, failures: int, *, jitter: float) -> int:
        """Milliseconds to wait after so many failures; `jitter` is drawn from [0, 1)."""
        return int(self._longest(failures) * (0.5 + jitter / 2))

    def postpones(self, failures: int) -> bool:
        """Whether the backoff after so many failures is waited for in a timeline."""
        return self._longest(failures) > HOLD_MS_MAX

    @property
    def may_postpone(self) -> bool:
        """Whether any retry can go through a timeline."""
        return self.attempts_max > 1 and self.postpones(self.attempts_max - 1)

    def _longest(self, failures: int) -> int:
        return min(self.backoff_ms_max, self.backoff_ms << min(failures - 1, 30))


class Team:
    """Runs a function on every job of its input topic, and puts the results on another topic."""

    def __init__(
        self,
        name: str,
        work: Callable[..., Any],
        *,
        workers: int = 1,
        kind: str = WorkKind.ITEM,
        codec: str = "json",
        timeout: str | int = "60s",
        attempts: int = 3,
        backoff: str | int = "200ms",
        backoff_max: str | int | None = None,
        concurrency: int = 1,
        batch: int = 256,
        remember: str | int = "1h",
        result_bytes_max: str | int = RECORD_BYTES_MAX,
        input_topic: str | None = None,
        results_topic: str | None = None,
        dead_topic: str | None = None,
        rate: str | None = None,
        running_max: int | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[[Any], Any] | None = None,
    ) -> None:
        """`work` is the function. Raises `InvalidInput` for a team that cannot work.

        `concurrency` is for functions that wait: each worker runs so many at once, in threads or,
        for an async function, as coroutines. `remember` is how long an id counts as seen. `backoff`
        is the pause after the first failure; it doubles up to `backoff_max` (5 s, or `backoff` if
        that is longer). A job with a pause above two seconds waits in a timeline of the cluster.
        `rate` ("100/s", "20/m") and `running_max` bound how many jobs begin, and how many run at
        once, across all workers.

        `setup` runs once in each process before its first job, and what it returns is the
        `resource` of each `JobContext`; `teardown` gets that when the process ends in peace.
        """
        self.name = _named(name, _NAME, "a team's name")
        check_function(work, f"team {name!r}: work")
        self.work = work
        self.setup, self.teardown = setup, teardown
        for what, given in (("setup", setup), ("teardown", teardown)):
            if given is not None:
                check_plain_function(given, f"team {name!r}: {what}")
        self.kind = _member(name, kind)
        self.codec: Codec = codec_of(codec)
        self.workers = _bounded(name, "workers", workers, WORKERS_MAX)
        self.remember_ms = _positive(name, "remember", parse_duration_ms(remember))

        backoff_ms = _positive(name, "backoff", parse_duration_ms(backoff))
        longest_ms = (
            max(BACKOFF_MS_MAX_DEFAULT, backoff_ms)
            if backoff_max is None
            else _positive(name, "backoff_max", parse_duration_ms(backoff_max))
        )

        self.policy = Policy(
            timeout_ms=_positive(name, "timeout", parse_duration_ms(timeout)),
            attempts_max=_bounded(name, "attempts", attempts, ATTEMPTS_MAX),
            backoff_ms=backoff_ms,
            backoff_ms_max=longest_ms,
            concurrency=_bounded(name, "concurrency", concurrency, CONCURRENCY_MAX),
            batch_max=_bounded(name, "batch", batch, BATCH_MAX),
            result_bytes_max=_positive(name, "result_bytes_max", parse_bytes(result_bytes_max)),
            rate_per_s=None if rate is None else _per_second(name, rate),
            running_max=(
                None
                if running_max is None
                else _bounded(name, "running_max", running_max, RUNNING_MAX)
            ),
        )

        if not backoff_ms <= longest_ms <= BACKOFF_MS_MAX:
            raise InvalidInput(
                f"team {name!r}: backoff={backoff!r} up to backoff_max={backoff_max!r}; the second "
                "must not be shorter than the first, and at most 30 days"
            )
        self._check_kind()

        self.input_topic = _topic(name, input_topic)
        self.results_topic = _topic(name, results_topic)
        self.dead_topic = _topic(name, dead_topic)
        self._connections: list[tuple[Connector, tuple[Team, ...]]] = []

    @property
    def connectors(self) -> tuple[Connector, ...]:
        """Where its results go, in the order of declaration."""
        return tuple(connector for connector, _ in self._connections)

    @property
    def next_teams(self) -> tuple["Team", ...]:
        """The teams that its connectors lead to."""
        return tuple(team for _, teams in self._connections for team in teams)

    def pipe_to(self, other: "Team", **options: Unpack[ConnectorOptions]) -> "Team":
        """Each result becomes a job of `other`; returns `other`, so that pipes can be chained."""
        return self._connect(ConnectorKind.PIPE, (other,), **options)

    def __rshift__(self, other: "Team") -> "Team":
        if not isinstance(other, Team):
            return NotImplemented
        return self.pipe_to(other)

    def spray_to(self, other: "Team", **options: Unpack[ConnectorOptions]) -> "Team":
        """Each item of a list result becomes a job of `other`, with an id of its own."""
        return self._connect(ConnectorKind.SPRAY, (other,), **options)

    def route_to(
        self,
        condition: Condition,
        holds: "Team",
        otherwise: "Team",
        **options: Unpack[ConnectorOptions],
    ) -> None:
        """Each result becomes a job of `holds` if `condition(result)`, else of `otherwise`."""
        check_plain_function(condition, f"team {self.name!r}: the condition of route_to")
        self._connect(ConnectorKind.ROUTE, (holds, otherwise), condition, **options)

    def gather_to(
        self, other: "Team", *, within: str | int = "1h", as_: str | None = None
    ) -> "Team":
        """The ends of all items of a job that was sprayed to this team become one job of `other`.

        Its payload is a list of `GatheredItem`, in the order of the items, when the last one has
        ended or `within` the spray is over; an item that failed, or is missing then, is marked. Its
        id is that of the job which was sprayed.
        """
        within_ms = _positive(self.name, "within", parse_duration_ms(within))
        if within_ms > BACKOFF_MS_MAX:
            raise InvalidInput(f"team {self.name!r}: within={within!r} is at most 30 days")
        if any(one.kind is ConnectorKind.GATHER for one in self.connectors):
            raise InvalidInput(f"team {self.name!r} has a gather_to already; it can have one")
        return self._connect(ConnectorKind.GATHER, (other,), as_=as_, within_ms=within_ms)

    def __repr__(self) -> str:
        return f"Team({self.name!r})"

    def _connect(
        self,
        kind: ConnectorKind,
        teams: tuple["Team", ...],
        condition: Condition | None = None,
        *,
        transform: Transform | None = None,
        after: str | int = 0,
        as_: str | None = None,
        cycle: str | None = None,
        within_ms: int = 0,
    ) -> "Team":
        for team in teams:
            if not isinstance(team, Team):
                raise InvalidInput(f"team {self.name!r}: cannot connect to {team!r}, not a team")
        if transform is not None:
            check_plain_function(transform, f"team {self.name!r}: transform")
        after_ms = parse_duration_ms(after)
        if not 0 <= after_ms <= AFTER_MS_MAX:
            raise InvalidInput(f"team {self.name!r}: after={after!r} is not from 0 to ten years")
        for name, text in (("as_", as_), ("cycle", cycle)):
            if text is not None:
                _named(text, _NAME, f"team {self.name!r}: {name}")

        connector = Connector(
            kind=kind,
            target=teams[0].name,
            otherwise=teams[1].name if len(teams) > 1 else None,
            condition=condition,
            transform=transform,
            after_ms=after_ms,
            id_suffix=as_,
            cycle=cycle,
            within_ms=within_ms,
        )
        self._connections.append((connector, teams))
        return teams[0]

    def _check_kind(self) -> None:
        if self.kind in (WorkKind.ARROW, WorkKind.PANDAS) and self.codec.name not in (
            "json",
            "msgpack",
        ):
            raise InvalidInput(
                f"team {self.name!r}: kind {self.kind.value!r} needs payloads that are rows of a "
                f"table, which codec {self.codec.name!r} does not give; take json or msgpack"
            )
        if self.kind is not WorkKind.ITEM and self.policy.concurrency > 1:
            raise InvalidInput(
                f"team {self.name!r}: concurrency is for functions of one payload; a function of "
                f"kind {self.kind.value!r} takes a whole batch and can be concurrent itself"
            )
        if self.kind is not WorkKind.ITEM and wants_context(self.work):
            raise InvalidInput(
                f"team {self.name!r}: a function of kind {self.kind.value!r} takes many jobs at "
                "once and gets no context; take kind 'item'"
            )


def _named(text: str, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise InvalidInput(
            f"{what} {text!r} must be 1 to 60 letters, digits, '-' and '_', not beginning with '-'"
        )
    return text


def _topic(team: str, topic: str | None) -> str | None:
    if topic is not None and not TOPIC_NAME.fullmatch(topic):
        raise InvalidInput(f"team {team!r}: {topic!r} is not a topic name")
    return topic


def _member(team: str, kind: str) -> WorkKind:
    if kind not in set(WorkKind):
        raise InvalidInput(
            f"team {team!r}: {kind!r} is not a kind of function; take {', '.join(WorkKind)}"
        )
    return WorkKind(kind)


def _bounded(team: str, name: str, value: int, value_max: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= value_max:
        raise InvalidInput(f"team {team!r}: {name}={value!r} must be a number, 1 to {value_max}")
    return value


def _per_second(team: str, rate: str) -> float:
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    per_s = float(found[1]) / _RATE_S[found[2]] if found else 0.0
    if not 0 < per_s <= RATE_PER_S_MAX:
        raise InvalidInput(
            f"team {team!r}: rate={rate!r} must be like 100/s, 20/m or 5/h, and at most "
            f"{RATE_PER_S_MAX}/s"
        )
    return per_s


def _positive(team: str, name: str, value: int) -> int:
    if value <= 0:
        raise InvalidInput(f"team {team!r}: {name} must be above 0")
    return value
