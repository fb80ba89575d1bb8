"""The processes of a cluster on one machine, decided before anything starts (U2); pure.

A `Plan` names every process with its number and its ports, and the sizes of the quorum. It is made
once, written to `cluster.json` in the cluster's folder before the first process starts, and kept:
a start after a stop, or after the loss of every process, finds the same numbers, ports and folders.

    new_plan     wish and free ports → plan
    grown        plan and wish → the same plan with more nodes at its end

Nothing is ever removed from a plan: a storage node holds data, and etcd's members know each other
by address. Ports are arguments.

Not here: which processes run at the moment. `processes.py` asks the system, so no pid in a file can
be out of date.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import msgspec

from dovetail.errors import InvalidInput
from dovetail.storage.quorum.arithmetic import Quorum, check_quorum

#: Nodes of one kind. Each takes some 60 MB and a share of the processor of one machine.
NODES_MAX = 32

#: Numbers of brokers begin behind those of storage nodes; both have room for `NODES_MAX`.
BROKER_ID_BASE = 100

#: Where the brokers listen if these are free: the first one where clients look by themselves.
PORT_FIRST = 9092

HOST = "127.0.0.1"

#: The name of the certificate that the nodes share.
CERTIFICATE = "cluster"

#: Whom the brokers log in as at the cluster's own PostgreSQL.
POSTGRES_USER = "dovetail"

Kind = Literal["etcd", "postgres", "storage", "broker"]

#: In the order of starting; stopping goes the other way.
KINDS: tuple[Kind, ...] = ("etcd", "postgres", "storage", "broker")

_ROLES: dict[Kind, str] = {"storage": "storage", "broker": "overseer,broker"}

#: What is no node of ours, and has no number among them.
FOREIGN = tuple(kind for kind in KINDS if kind not in _ROLES)


class Planned(msgspec.Struct, frozen=True):
    """One process. `side_port` is that of HTTP, or of etcd's members among each other.

    PostgreSQL has one port, and leaves the other.
    """

    name: str
    kind: Kind
    number: int
    port: int
    side_port: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def roles(self) -> str:
        return _ROLES.get(self.kind, self.kind)

    @property
    def is_node(self) -> bool:
        """Whether it is one of ours, with a number of its own."""
        return self.kind not in FOREIGN


class Plan(msgspec.Struct, frozen=True):
    """A cluster: its processes in the order of starting, and the settings that they share."""

    processes: tuple[Planned, ...]
    ensemble: int
    write_quorum: int
    ack_quorum: int
    #: Members of an etcd that is not ours; empty if the plan has its own.
    etcd: tuple[str, ...] = ()
    config: str | None = None
    assignments: tuple[str, ...] = ()
    #: Whether nodes and clients encrypt, with certificates of the cluster's own authority.
    tls: bool = False

    def of_kind(self, kind: Kind) -> list[Planned]:
        return [process for process in self.processes if process.kind == kind]

    @property
    def bootstrap(self) -> str:
        """What a Kafka client is given."""
        return ",".join(broker.address for broker in self.of_kind("broker"))

    @property
    def etcd_endpoints(self) -> tuple[str, ...]:
        return self.etcd or tuple(member.address for member in self.of_kind("etcd"))


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for; None where nothing was said."""

    brokers: int | None = None
    storage: int | None = None
    etcd_members: int | None = None
    etcd: tuple[str, ...] = ()
    ensemble: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    config: str | None = None
    assignments: tuple[str, ...] = ()
    tls: bool = False
    #: Whether a PostgreSQL of its own keeps the timelines of a new cluster.
    postgres: bool = False


BROKERS_DEFAULT = 3
STORAGE_DEFAULT = 3
#: So that of these, too, any one can die.
ETCD_MEMBERS_DEFAULT = 3
COPIES_DEFAULT = 3


def ports_needed(wish: Wish, known: Plan | None = None) -> tuple[int, int]:
    """How many ports the new processes take: of brokers for clients, and of all for the rest."""
    counts = _counts(wish, known)
    new = {kind: counts[kind] - (len(known.of_kind(kind)) if known else 0) for kind in KINDS}
    return new["broker"], 2 * sum(new.values()) - new["broker"]


def new_plan(wish: Wish, *, broker_ports: Sequence[int], ports: Sequence[int]) -> Plan:
    """The plan for a folder that has none. Raises `InvalidInput`."""
    counts = _counts(wish, None)
    quorum = _quorum(wish, counts["storage"])
    return Plan(
        processes=tuple(_processes(counts, None, iter(broker_ports), iter(ports))),
        ensemble=quorum.ensemble,
        write_quorum=quorum.write,
        ack_quorum=quorum.ack,
        etcd=wish.etcd,
        config=wish.config,
        assignments=wish.assignments,
        tls=wish.tls,
    )


def grown(plan: Plan, wish: Wish, *, broker_ports: Sequence[int], ports: Sequence[int]) -> Plan:
    """The plan with what is wished for in addition. Raises `InvalidInput` for less or other."""
    counts = _counts(wish, plan)
    if wish.etcd and wish.etcd != plan.etcd:
        raise InvalidInput(
            f"this cluster keeps its state in the etcd at {','.join(plan.etcd_endpoints)}, not at "
            f"{','.join(wish.etcd)}; for another etcd choose another --data-dir"
        )
    if wish.tls and not plan.tls:
        raise InvalidInput(
            "--tls: this cluster was made without it, and its clients and nodes know it so; for "
            "one with TLS choose another --data-dir"
        )

    asked = (wish.ensemble, wish.write_quorum, wish.ack_quorum)
    quorum = Quorum(
        *(
            old if new is None else new
            for old, new in zip(
                (plan.ensemble, plan.write_quorum, plan.ack_quorum), asked, strict=True
            )
        )
    )
    _check_quorum(quorum, counts["storage"])

    return Plan(
        processes=tuple(_processes(counts, plan, iter(broker_ports), iter(ports))),
        ensemble=quorum.ensemble,
        write_quorum=quorum.write,
        ack_quorum=quorum.ack,
        etcd=plan.etcd,
        config=wish.config or plan.config,
        assignments=wish.assignments or plan.assignments,
        tls=plan.tls,
    )


def node_arguments(
    plan: Plan,
    process: Planned,
    *,
    data_dir: str,
    password_file: str = "",
    certificates: str = "",
) -> list[str]:
    """What a storage node or a broker is started with, behind `dovetail node`."""
    arguments = [
        f"--roles={process.roles}",
        f"--node-id={process.number}",
        f"--name={process.name}",
        f"--etcd={','.join(plan.etcd_endpoints)}",
        f"--data-dir={data_dir}",
        f"--host={HOST}",
        f"--port={process.port}",
        f"--http-port={process.side_port}",
        f"--set=log.ensemble={plan.ensemble}",
        f"--set=log.write_quorum={plan.write_quorum}",
        f"--set=log.ack_quorum={plan.ack_quorum}",
    ]

    if plan.tls:
        arguments += [
            f"--set=security.tls_certificate={certificates}/{CERTIFICATE}.pem",
            f"--set=security.tls_key={certificates}/{CERTIFICATE}.key",
            f"--set=security.tls_ca={certificates}/ca.pem",
            # By its certificate a node is let in by the others where clients have to log in.
            f"--set=security.nodes={CERTIFICATE}",
        ]
    for database in plan.of_kind("postgres"):
        where = f"postgresql://{POSTGRES_USER}@{database.address}/postgres"
        arguments += [
            "--set=timeline.store=postgres",
            f"--set=timeline.dsn={where}?passfile={quote(password_file)}",
        ]
    if plan.config is not None:
        arguments.append(f"--config={plan.config}")
    return arguments + [f"--set={text}" for text in plan.assignments]


def etcd_arguments(plan: Plan, process: Planned, *, data_dir: str) -> list[str]:
    """What a member of etcd is started with."""
    client, peer = f"http://{process.address}", f"http://{HOST}:{process.side_port}"
    members = ",".join(
        f"{member.name}=http://{HOST}:{member.side_port}" for member in plan.of_kind("etcd")
    )
    return [
        f"--name={process.name}",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={members}",
        # Ours is one cluster a folder; a member that strays to another is refused by its token.
        f"--initial-cluster-token=dovetail-{plan.of_kind('etcd')[0].side_port}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
    ]


def postgres_arguments(plan: Plan, process: Planned, *, data_dir: str) -> list[str]:
    """What PostgreSQL is started with."""
    settings = {
        # By this one it is found among the processes of the system.
        "data-directory": data_dir,
        "listen-addresses": HOST,
        "port": process.port,
        "unix-socket-directories": "",
        # Eight for each broker, and some for people.
        "max-connections": 10 * NODES_MAX,
    }
    return ["-D", data_dir, *(f"--{name}={value}" for name, value in settings.items())]


def _counts(wish: Wish, known: Plan | None) -> dict[Kind, int]:
    def count(kind: Kind, asked: int | None, default: int, flag: str) -> int:
        there = len(known.of_kind(kind)) if known else 0
        if asked is None:
            return there if known else default
        if not 1 <= asked <= NODES_MAX:
            raise InvalidInput(f"{flag} {asked}: 1 to {NODES_MAX} can run on one machine")
        if known and asked < there:
            raise InvalidInput(
                f"{flag} {asked}: this cluster has {there}, and none can be taken away: each may "
                "hold data that others need. For a smaller cluster choose another --data-dir"
            )
        return asked

    members = wish.etcd_members
    if wish.etcd and members is not None:
        raise InvalidInput("--etcd names an etcd that runs already; leave out --etcd-members")
    if known and members is not None and members != len(known.of_kind("etcd")):
        raise InvalidInput(
            f"--etcd-members {members}: this cluster was created with "
            f"{len(known.of_kind('etcd'))}; for another number choose another --data-dir"
        )
    own_etcd = not (known.etcd if known else wish.etcd)
    return {
        "etcd": count("etcd", members, ETCD_MEMBERS_DEFAULT, "--etcd-members") if own_etcd else 0,
        "postgres": max(wish.postgres, len(known.of_kind("postgres")) if known else 0),
        "storage": count("storage", wish.storage, STORAGE_DEFAULT, "--storage"),
        "broker": count("broker", wish.brokers, BROKERS_DEFAULT, "--brokers"),
    }


def _quorum(wish: Wish, storage: int) -> Quorum:
    """As many copies as three nodes allow, and a majority of them to acknowledge."""
    write = wish.write_quorum or wish.ensemble or min(storage, COPIES_DEFAULT)
    quorum = Quorum(wish.ensemble or write, write, wish.ack_quorum or write // 2 + 1)
    _check_quorum(quorum, storage)
    return quorum


def _check_quorum(quorum: Quorum, storage: int) -> None:
    check_quorum(quorum)
    if quorum.ensemble > storage:
        raise InvalidInput(
            f"ensemble {quorum.ensemble} > {storage} storage nodes; ask for more with --storage, "
            "or for fewer copies with --write-quorum"
        )


def _processes(
    counts: dict[Kind, int],
    known: Plan | None,
    broker_ports: Iterator[int],
    ports: Iterator[int],
) -> Iterator[Planned]:
    for kind in KINDS:
        there = known.of_kind(kind) if known else []
        yield from there
        for at in range(len(there) + 1, counts[kind] + 1):
            number = BROKER_ID_BASE + at if kind == "broker" else at
            port = next(broker_ports) if kind == "broker" else next(ports)
            yield Planned(f"{kind}-{at}", kind, number, port, next(ports))
