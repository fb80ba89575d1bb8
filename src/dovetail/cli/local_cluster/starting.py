"""Brings a cluster up: the plan first, then its processes that do not run yet."""

import random
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from dovetail import DISTRIBUTION
from dovetail.cli.local_cluster import postgres, processes
from dovetail.cli.local_cluster.etcd import etcd_binary
from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.plan import (
    CERTIFICATE,
    HOST,
    KINDS,
    PORT_FIRST,
    Plan,
    Planned,
    Wish,
    grown,
    new_plan,
    ports_needed,
)
from dovetail.cli.local_cluster.processes import Launched
from dovetail.cli.program import program
from dovetail.cli.starting import prepare_folder
from dovetail.errors import InvalidInput, InvalidSetting, Refused, Unavailable
from dovetail.settings import load_settings, parse_assignment

#: Below the ports that the system gives to outgoing connections, so that they are still free
#: when the cluster comes back.
_PORTS = range(20_000, 32_000)

_PORT_MAX = 65_535

#: A dead process has its ports until the last of its threads is gone.
_PORT_BACK_S_MAX = 3.0


def start_cluster(
    folder: ClusterFolder, wish: Wish, *, port: int | None = None, on_step: Callable[[str], None]
) -> Plan:
    """Starts what does not run; returns when all of it serves. Calls `on_step` with each step.

    Raises `InvalidInput` for a wish that cannot be, with nothing changed, and `Unavailable` if a
    process does not come up; those that did are left running.
    """
    prepare_folder(folder.path)
    with folder.locked():
        known, running = folder.find_plan(), processes.find(folder)
        if _wants_postgres(folder, wish, known, running, on_step):
            wish = replace(wish, postgres=True)
        plan = _plan(wish, known, port)
        if known is None:
            _check_is_new(folder, plan, running)

        missing = [planned for planned in plan.processes if planned.name not in running]
        _check_login(plan)
        if plan.tls:
            _issue_certificate(folder)
        _check_startable(folder, plan, missing)
        folder.write_plan(plan)

        for name, process in running.items():
            state = processes.state_of(process)
            resume = f"; resume it: {program()} cluster resume {name}{folder.hint()}"
            on_step(f"{name:<12} is {state} already{resume if state == 'paused' else ''}")
        if missing:
            _start(folder, plan, missing, on_step)
        else:
            on_step(f"the cluster in {folder.path} runs already")
    return plan


def _check_login(plan: Plan) -> None:
    """Refuses logins that would keep the nodes from each other: they know each other by TLS."""
    settings = load_settings(
        flags=map(parse_assignment, plan.assignments),
        config=None if plan.config is None else Path(plan.config),
    )
    security = settings.security
    if security.on and not plan.tls and not security.node_names():
        raise InvalidInput(
            "clients would have to log in (security.login), and so would the nodes to each other, "
            "which they do by certificates alone: add --tls (in a new --data-dir, if this cluster "
            "was made without it)"
        )


def _wants_postgres(
    folder: ClusterFolder,
    wish: Wish,
    known: Plan | None,
    running: Collection[str],
    on_step: Callable[[str], None],
) -> bool:
    """Whether a PostgreSQL is added for the timelines; says why not where it cannot be."""
    if known is not None and (
        known.of_kind("postgres")
        or any(broker.name in running for broker in known.of_kind("broker"))
    ):
        return False
    config = wish.config or (known.config if known else None)
    settings = load_settings(
        flags=map(parse_assignment, wish.assignments or (known.assignments if known else ())),
        config=None if config is None else Path(config),
    )
    if not settings.timeline.enabled or settings.timeline.store == "postgres":
        return False
    try:
        postgres.find_programs(folder)
    except InvalidSetting as error:
        on_step(f"timelines are not served: {error}")
        return False
    return True


def _issue_certificate(folder: ClusterFolder) -> None:
    """One certificate for all nodes, which are all on this machine; made once.

    Raises `InvalidSetting` if the package for it is missing.
    """
    try:
        from dovetail.access.certificates import Authority
    except ImportError as error:
        raise InvalidSetting(
            f"--tls needs {error.name}, which is not installed; "
            f"pip install '{DISTRIBUTION}[certificates]'"
        ) from error
    authority = Authority(folder.certificates)
    if not (folder.certificates / f"{CERTIFICATE}.pem").exists():
        authority.issue(CERTIFICATE, hosts=("localhost", HOST, "::1"))


def _check_is_new(folder: ClusterFolder, plan: Plan, running: Collection[str]) -> None:
    """Refuses a folder whose plan is lost: a new one would give old data to other numbers."""
    if running:
        raise Refused(
            f"{', '.join(sorted(running))} of a cluster in {folder.path} still run, but its "
            f"cluster.json is lost; stop them with `{program()} cluster stop{folder.hint()}`, then "
            "restore it"
        )
    left = [planned.name for planned in plan.processes if folder.data(planned.name).exists()]
    if left:
        raise Refused(
            f"{folder.path} holds data of {', '.join(left)}, but its cluster.json is lost; restore "
            "it, move the data away, or choose another --data-dir"
        )


def _plan(wish: Wish, known: Plan | None, port: int | None) -> Plan:
    for_clients, for_the_rest = ports_needed(wish, known)
    broker_ports = _broker_ports(for_clients, port, known)
    ports = free_ports(for_the_rest, without=broker_ports)
    if known is None:
        return new_plan(wish, broker_ports=broker_ports, ports=ports)
    return grown(known, wish, broker_ports=broker_ports, ports=ports)


def _broker_ports(count: int, first: int | None, known: Plan | None) -> list[int]:
    """A row of ports from the one that was asked for; else the usual ones, if they are free."""
    if known is not None and first:
        listening = [broker.port for broker in known.of_kind("broker")]
        if first != listening[0]:
            raise InvalidInput(
                f"--port {first}: the brokers of this cluster listen on "
                f"{', '.join(map(str, listening))}, which clients know, and keep these ports"
            )
    if first is None or known is not None:
        row = list(range(PORT_FIRST, PORT_FIRST + count))
        usual = known is None and all(_is_free(port) for port in row)
        return row if usual else free_ports(count)
    if first == 0:
        return free_ports(count)
    if first + count - 1 > _PORT_MAX:
        raise InvalidInput(f"--port {first}: {count} brokers need ports up to {first + count - 1}")
    row = list(range(first, first + count))
    taken = [port for port in row if not _is_free(port)]
    if taken:
        raise Unavailable(
            f"--port {first}: {HOST}:{taken[0]} is in use already; choose another, or 0 for any"
        )
    return row


def free_ports(count: int, *, without: Sequence[int] = ()) -> list[int]:
    """Ports that nobody listens on at the moment."""
    rng, found = random.SystemRandom(), list[int]()
    while len(found) < count:
        port = rng.choice(_PORTS)
        if port not in without and port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers from the last life is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _becomes_free(port: int) -> bool:
    """Whether a port is free, or is given back soon by a process that was killed just now."""
    deadline = time.monotonic() + _PORT_BACK_S_MAX
    while not _is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(processes.LOOK_S)
    return True


def _check_startable(folder: ClusterFolder, plan: Plan, missing: Sequence[Planned]) -> None:
    """Refuses what would only fail in a log later: settings, programs, ports."""
    for planned in missing:
        if planned.kind == "etcd":
            etcd_binary()
        elif planned.kind == "postgres":
            postgres.find_programs(folder)
        else:
            _check_settings(folder, plan, planned)
        for port in (planned.port, planned.side_port):
            if not _becomes_free(port):
                raise Unavailable(
                    f"{planned.name} needs {HOST}:{port}, as planned in {folder.path}, but another "
                    "program listens there; stop that program, or start in another --data-dir"
                )


def _check_settings(folder: ClusterFolder, plan: Plan, planned: Planned) -> None:
    """Raises `InvalidSetting` as the node itself would."""
    arguments = processes.planned_arguments(folder, plan, planned)
    given = [a.removeprefix("--set=") for a in arguments if a.startswith("--set=")]
    settings = load_settings(
        flags=[parse_assignment(text) for text in given],
        config=None if plan.config is None else Path(plan.config),
    )
    for name in ("node.node_id", "node.name", "node.roles", "kafka.port", "http.port"):
        origin = settings.origin(name)
        if origin.place == "flag":
            raise InvalidSetting(
                f"{origin.name}: a cluster gives each of its nodes its own {name}; leave it out"
            )


def _start(
    folder: ClusterFolder, plan: Plan, missing: Sequence[Planned], on_step: Callable[[str], None]
) -> None:
    """etcd and PostgreSQL first; the nodes together, because brokers wait for what they need."""
    etcd = [planned for planned in missing if planned.kind == "etcd"]
    if etcd and etcd_binary().bundled:
        on_step("etcd is the bundled one, for trials only; an etcd on the path is preferred")
    database = [planned for planned in missing if planned.kind == "postgres"]
    nodes = [
        planned for kind in KINDS for planned in missing if planned.kind == kind and planned.is_node
    ]

    def on_ready(one: Launched) -> None:
        seconds = time.monotonic() - one.started_s
        on_step(f"{one.planned.name:<12} ready on {one.planned.address} after {seconds:.1f} s")

    for group in ([*etcd, *database], nodes):
        launched = [processes.launch(folder, plan, planned) for planned in group]
        processes.await_ready(folder, launched, on_ready)
