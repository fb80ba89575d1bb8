"""The state of a cluster, seen from outside: its processes, its members, its partitions (B2).

The view asks four sources independently, so that one without an answer hides nothing of the others:
the system (which processes run, with what memory and processor time), etcd (which nodes hold a
lease, with their load; read only), the Kafka port of any broker (which broker leads which
partition) and an overseer (how long each node takes to answer).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.admin import cluster
from dovetail.admin.kafka import Kafka
from dovetail.cli.local_cluster import processes
from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.plan import CERTIFICATE, FOREIGN, Kind, Plan
from dovetail.cli.local_cluster.processes import Health, State
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.coordination.membership import Member
from dovetail.errors import CoordinationDown, DovetailError, Unavailable
from dovetail.node.overseer import ClusterReport

#: Time over which processor time is measured, if there was no look before.
SAMPLE_S = 0.3

#: For one member of etcd, and for all of them; a person waits for the answer.
_ETCD_ATTEMPT_MS = 1_000
_ETCD_REQUEST_MS = 3_000

#: The Kafka port of a broker.
_KAFKA_S_MAX = 4.0

#: Partitions without a leader that are named; the rest are counted.
_NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process of the plan, as the system and it itself say."""

    name: str
    state: State
    roles: str
    number: int
    address: str
    pid: int | None
    memory_bytes: int | None
    cpu_percent: float | None
    health: Health

    @property
    def summary(self) -> str:
        """The state, with what the process itself adds to it."""
        if self.state != "running" or self.health.ready:
            return self.state
        return "; ".join(self.health.reasons) or "not ready"


@dataclass(frozen=True, slots=True)
class KafkaView:
    """What a broker answers: leaders by partition (`topic-number`), -1 where there is none."""

    brokers: tuple[int, ...]
    leaders: Mapping[str, int]

    @property
    def without_leader(self) -> list[str]:
        """Partitions that nobody serves: no leader, or one that is no broker any more."""
        return sorted(name for name, leader in self.leaders.items() if leader not in self.brokers)

    def led_by(self) -> Counter[int]:
        return Counter(self.leaders.values())


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All of it; a place that did not answer is its error."""

    folder: str
    bootstrap: str
    processes: tuple[ProcessView, ...]
    members: tuple[Member, ...] | DovetailError
    kafka: KafkaView | DovetailError
    overseer: ClusterReport | DovetailError


class Looker:
    """Looks again and again; keeps the processor times of the last look to compare with."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder
        self._times: dict[int, float] = {}
        self._at = 0.0

    def look(self) -> ClusterView:
        """The cluster as it is now. Raises `NotFound` if there is none."""
        plan = self._folder.plan()
        found = processes.find(self._folder)
        if not self._times:
            self._sample(found)
            time.sleep(SAMPLE_S)

        with ThreadPoolExecutor() as pool:
            states = {name: processes.state_of(process) for name, process in found.items()}
            healths = {
                planned.name: pool.submit(processes.health_of, planned)
                for planned in plan.processes
                if states.get(planned.name) == "running"
            }
            members = pool.submit(_members_of, plan, states)
            kafka = pool.submit(_kafka_of, plan, states, self._folder)
            overseer = pool.submit(_overseer_of, plan, states)

        seconds, before = time.monotonic() - self._at, dict(self._times)
        self._sample(found)
        views = []
        for planned in plan.processes:
            process = found.get(planned.name)
            health = healths[planned.name].result() if planned.name in healths else Health(False)
            pid = None if process is None else process.pid
            busy = self._times.get(pid, 0.0) - before.get(pid, 0.0) if pid in before else None
            views.append(
                ProcessView(
                    planned.name,
                    states.get(planned.name, "dead"),
                    planned.roles,
                    planned.number,
                    planned.address,
                    pid,
                    _memory_of(process),
                    None if busy is None else max(0.0, 100 * busy / seconds),
                    health,
                )
            )

        return ClusterView(
            str(self._folder.path),
            plan.bootstrap,
            tuple(views),
            members.result(),
            kafka.result(),
            overseer.result(),
        )

    def _sample(self, found: Mapping[str, Any]) -> None:
        psutil = processes.system_processes()
        self._times, self._at = {}, time.monotonic()
        for process in found.values():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._times[process.pid] = times.user + times.system


def _memory_of(process: Any) -> int | None:
    psutil = processes.system_processes()
    try:
        return None if process is None else int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return None


def _members_of(plan: Plan, states: Mapping[str, State]) -> tuple[Member, ...] | DovetailError:
    if not plan.etcd and not _running(plan, states, "etcd"):
        return CoordinationDown("no member of etcd runs")
    try:
        return asyncio.run(_read_members(plan))
    except DovetailError as error:
        return error


async def _read_members(plan: Plan) -> tuple[Member, ...]:
    given = dict(text.split("=", 1) for text in plan.assignments)
    settings = EtcdSettings(
        plan.etcd_endpoints,
        namespace=given.get("coordination.namespace", EtcdSettings(()).namespace),
        attempt_timeout_ms=_ETCD_ATTEMPT_MS,
        request_timeout_ms=_ETCD_REQUEST_MS,
        tls_ca=given.get("coordination.tls_ca", ""),
        tls_certificate=given.get("coordination.tls_certificate", ""),
        tls_key=given.get("coordination.tls_key", ""),
    )
    async with await EtcdCoordinator.open(settings) as coordinator:
        return await cluster.members(coordinator)


def _kafka_of(
    plan: Plan, states: Mapping[str, State], folder: ClusterFolder
) -> KafkaView | DovetailError:
    # A paused broker takes connections and answers nothing: only those that run are asked.
    asked = _running(plan, states, "broker")
    if not asked:
        return Unavailable("no broker runs")

    # As a node, so that it is answered where clients have to log in.
    own = folder.certificates / CERTIFICATE
    trust = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder.certificates / "ca.pem"),
        "ssl.certificate.location": f"{own}.pem",
        "ssl.key.location": f"{own}.key",
    }
    kafka = Kafka(
        ",".join(asked),
        _KAFKA_S_MAX,
        client_id="dovetail-cli",
        security=trust if plan.tls else {},
    )
    try:
        kafka.check()
        metadata = kafka.metadata()
    except DovetailError as error:
        return error
    leaders = {
        f"{topic}-{number}": -1 if leader is None else leader
        for (topic, number), leader in metadata.leaders().items()
    }
    return KafkaView(tuple(sorted(metadata.brokers)), leaders)


def _overseer_of(plan: Plan, states: Mapping[str, State]) -> ClusterReport | DovetailError:
    error: DovetailError = Unavailable("no overseer runs")
    for broker in plan.of_kind("broker"):
        if states.get(broker.name) != "running":
            continue
        try:
            answer = processes.ask(broker.side_port, "/v1/cluster")
            return msgspec.json.decode(answer, type=ClusterReport)
        except Unavailable as failure:
            error = failure
        except msgspec.DecodeError:
            error = Unavailable(f"{broker.name} does not answer as an overseer: {answer[:200]!r}")
    return error


def _running(plan: Plan, states: Mapping[str, State], kind: Kind) -> list[str]:
    """The addresses of those that run."""
    return [one.address for one in plan.of_kind(kind) if states.get(one.name) == "running"]


def as_document(view: ClusterView) -> dict[str, object]:
    """Everything in the view, for programs."""
    answer: dict[str, object] = {
        "folder": view.folder,
        "bootstrap": view.bootstrap,
        "processes": [
            {
                "name": one.name,
                "state": one.state,
                "roles": one.roles.split(","),
                "number": one.number,
                "address": one.address,
                "pid": one.pid,
                "memory_bytes": one.memory_bytes,
                "cpu_percent": one.cpu_percent,
                "ready": one.health.ready,
                "reasons": list(one.health.reasons),
            }
            for one in view.processes
        ],
    }

    errors: dict[str, str] = {}
    if isinstance(view.members, DovetailError):
        errors["members"] = str(view.members)
    else:
        answer["members"] = [msgspec.to_builtins(member) for member in view.members]
    if isinstance(view.kafka, DovetailError):
        errors["kafka"] = str(view.kafka)
    else:
        led = view.kafka.led_by()
        answer["brokers"] = [
            {"number": number, "leads": led[number]} for number in view.kafka.brokers
        ]
        answer["partitions"] = len(view.kafka.leaders)
        answer["without_leader"] = view.kafka.without_leader
    if isinstance(view.overseer, DovetailError):
        errors["overseer"] = str(view.overseer)
    else:
        answer["overseer"] = msgspec.to_builtins(view.overseer)
    return {**answer, "errors": errors}


def rendered(view: ClusterView) -> RenderableType:
    """The view for people."""
    members = {} if isinstance(view.members, DovetailError) else _by_number(view.members)
    kafka = None if isinstance(view.kafka, DovetailError) else view.kafka
    led = Counter[int]() if kafka is None else kafka.led_by()
    latencies = _latencies(view)
    table = Table(header_style="bold", title=f"cluster in {view.folder}", title_justify="left")
    for title, right in _COLUMNS:
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for one in view.processes:
        member = members.get(one.number) if one.roles not in FOREIGN else None
        table.add_row(
            one.name,
            Text(one.summary, style=_STYLES.get(one.state, "")),
            one.roles,
            one.address,
            "-" if one.pid is None else str(one.pid),
            "-" if one.memory_bytes is None else f"{one.memory_bytes / 1e6:,.0f} MB",
            "-" if one.cpu_percent is None else f"{one.cpu_percent:.1f} %",
            "" if one.roles in FOREIGN else ("yes" if member is not None else "no"),
            latencies.get(one.number, "-") if member is not None else "",
            _load(one, member, led),
        )

    lines = [Text(f"bootstrap servers: {view.bootstrap}")]
    if isinstance(view.members, DovetailError):
        lines.append(Text(f"etcd: {view.members}", style="red"))
    if isinstance(view.overseer, DovetailError):
        lines.append(Text(f"overseer: {view.overseer}", style="red"))
    if isinstance(view.kafka, DovetailError):
        lines.append(Text(f"Kafka: {view.kafka}", style="red"))
    elif kafka is not None:
        lines.append(_leaders_line(kafka))
        for one in view.processes:
            if one.state != "running" and led[one.number] and "broker" in one.roles:
                waiting = f"{led[one.number]} of them wait: their leader {one.name} is {one.state}"
                lines.append(Text(waiting, style="bold yellow"))
    return Group(table, *lines)


_COLUMNS = (
    ("process", False),
    ("state", False),
    ("roles", False),
    ("address", False),
    ("pid", True),
    ("memory", True),
    ("cpu", True),
    ("lease", False),
    ("answers", True),
    ("load", False),
)

_STYLES: dict[State, str] = {"running": "green", "paused": "yellow", "dead": "bold red"}


def _by_number(members: tuple[Member, ...]) -> dict[int, Member]:
    return {member.node_id: member for member in members}


def _latencies(view: ClusterView) -> dict[int, str]:
    """How long each node takes to answer, by its number."""
    if isinstance(view.overseer, DovetailError):
        return {}
    known = {node.node_id: node.latency_ms for node in view.overseer.nodes}
    return {number: f"{ms:.1f} ms" for number, ms in known.items() if ms is not None}


def _load(one: ProcessView, member: Member | None, led: Counter[int]) -> str:
    """What a node carries: bytes that it stores, partitions that it leads."""
    parts = []
    if member is not None and "storage" in member.roles:
        parts.append(f"{member.stored_bytes / 1e6:,.1f} MB stored")
    if member is not None and member.rack:
        parts.append(f"rack {member.rack}")
    if "broker" in one.roles and led[one.number]:
        parts.append(f"leads {led[one.number]}")
    return ", ".join(parts)


def _leaders_line(kafka: KafkaView) -> Text:
    missing = kafka.without_leader
    if not missing:
        return Text(f"{len(kafka.leaders)} partitions, all with a leader")
    named = ", ".join(missing[:_NAMED_MAX])
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    text = f"{len(kafka.leaders)} partitions, {len(missing)} without a leader: {named}{more}"
    return Text(text, style="bold red")
