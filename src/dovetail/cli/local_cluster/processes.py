"""The processes of a cluster on this machine: finds, starts, signals and ends them.

A process is recognised by the `--data-dir` on its own command line, below the cluster's folder, and
not by a number in a file: the system's answer cannot be stale, a number may have been reused, and a
lost file leaves no process that cannot be ended.

States, as seen from outside:

    dead → running ⇄ paused        paused: stopped by SIGSTOP, it does not know it
             │         │
             └─────────┴→ dead     asked (SIGTERM, awake), or forced (SIGKILL)

Survives: a start that was interrupted anywhere. The next one finds what runs and starts the rest.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dovetail.cli.local_cluster import postgres
from dovetail.cli.local_cluster.etcd import etcd_binary
from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.plan import (
    HOST,
    KINDS,
    Kind,
    Plan,
    Planned,
    etcd_arguments,
    node_arguments,
    postgres_arguments,
)
from dovetail.errors import InvalidSetting, Refused, Unavailable

State = Literal["running", "paused", "dead"]

#: From launch to ready. A node reads what its last life left; on this machine that takes seconds.
START_S_MAX = 60.0

#: A node that is asked to stop gives its partitions back; after this it is killed.
STOP_S_MAX = 30.0

#: A signal takes effect within milliseconds, unless the process sits in the disk.
SIGNAL_S_MAX = 10.0

#: Pause between two looks at a process that should change.
LOOK_S = 0.05

#: One answer over HTTP on this machine.
_HTTP_S_MAX = 1.0

#: Lines of the log in the report of a failure.
_LOG_LINES = 12

#: Ours and etcd's, and PostgreSQL's.
_ARGUMENTS = ("--data-dir=", "--data-directory=")


@dataclass(frozen=True, slots=True)
class Health:
    """What a process says of itself."""

    ready: bool
    reasons: tuple[str, ...] = ()


def system_processes() -> Any:
    """The module `psutil`. Raises `InvalidSetting` if it is not installed."""
    try:
        import psutil
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            "the processes of a cluster are managed with psutil, which is not installed; "
            "pip install 'dovetailmq[cluster]'"
        ) from error
    return psutil


def find(folder: ClusterFolder) -> dict[str, Any]:
    """The processes that work on data below the folder (`psutil.Process`), by their names."""
    psutil = system_processes()
    prefixes = tuple(f"{argument}{folder.path}{os.sep}" for argument in _ARGUMENTS)
    found: dict[str, Any] = {}
    for process in psutil.process_iter(["cmdline"]):
        for argument in process.info["cmdline"] or ():
            for prefix in prefixes:
                if argument.startswith(prefix):
                    # A child of PostgreSQL has its parent's words for a moment.
                    found.setdefault(argument.removeprefix(prefix), process)
    return found


def state_of(process: Any) -> State:
    """Whether a process works; a zombie is dead and only waits for its parent."""
    psutil = system_processes()
    try:
        status = process.status()
    except psutil.NoSuchProcess:
        return "dead"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "dead"
    return "paused" if status == psutil.STATUS_STOPPED else "running"


def health_of(planned: Planned) -> Health:
    """Asks a process over its port how it is; one that does not answer is not ready."""
    if planned.kind == "postgres":
        reason = postgres.why_not_ready(planned.port)
        return Health(reason is None, () if reason is None else (reason,))
    etcd = planned.kind == "etcd"
    port, path = (planned.port, "/health") if etcd else (planned.side_port, "/readyz")
    try:
        answer = json.loads(ask(port, path))
    except (Unavailable, ValueError) as error:
        return Health(False, (str(error),))
    if etcd:
        healthy = str(answer.get("health")) == "true"
        return Health(healthy, () if healthy else (str(answer.get("reason", "no leader")),))
    return Health(bool(answer.get("ready")), tuple(map(str, answer.get("reasons", ()))))


def ask(port: int, path: str) -> bytes:
    """The answer to a GET, whatever its status. Raises `Unavailable` if there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_HTTP_S_MAX)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no answer over HTTP: {error}") from error
    finally:
        connection.close()


class Launched:
    """A process that this command has started."""

    def __init__(self, planned: Planned, process: "subprocess.Popen[bytes]") -> None:
        self.planned = planned
        self.started_s = time.monotonic()
        self._process = process

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()


def launch(folder: ClusterFolder, plan: Plan, planned: Planned) -> Launched:
    """Starts a process in the background, in a session of its own."""
    data_dir = str(folder.data(planned.name))
    who: dict[str, Any] = {}
    if planned.kind == "postgres":
        postgres.make_data(folder, planned.name)
        _drop_dead_lock(folder.data(planned.name) / "postmaster.pid")
        program, who = postgres.find_programs(folder) / "postgres", postgres.as_user()
        command = [str(program), *postgres_arguments(plan, planned, data_dir=data_dir)]
    elif planned.kind == "etcd":
        command = [etcd_binary().path, *etcd_arguments(plan, planned, data_dir=data_dir)]
        # etcd creates its folder open to its owner alone, and warns of any other.
        folder.data(planned.name).mkdir(mode=0o700, exist_ok=True)
    else:
        command = [sys.executable, "-m", "dovetail", "node", "--json"]
        command += planned_arguments(folder, plan, planned)

    foreign = ("ETCD_", "PG")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    with folder.open_log(planned.name) as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **who,
        )
    return Launched(planned, process)


def _drop_dead_lock(lock: Path) -> None:
    """PostgreSQL takes a zombie for alive, which was killed and only waits for its parent."""
    psutil = system_processes()
    try:
        process = psutil.Process(int(lock.read_text().split()[0]))
    except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
        return  # There is none, or PostgreSQL sees by itself that its owner is gone.
    if state_of(process) == "dead":
        lock.unlink()


def planned_arguments(folder: ClusterFolder, plan: Plan, planned: Planned) -> list[str]:
    """What a node is started with."""
    passwords = [str(folder.password(one.name)) for one in plan.of_kind("postgres")]
    return node_arguments(
        plan,
        planned,
        data_dir=str(folder.data(planned.name)),
        password_file=passwords[0] if passwords else "",
        certificates=str(folder.certificates),
    )


def await_ready(
    folder: ClusterFolder,
    launched: Sequence[Launched],
    on_ready: Callable[[Launched], None],
) -> None:
    """Returns when all are ready. Raises `Unavailable` for one that is not in time."""
    waiting = list(launched)
    while waiting:
        for one in tuple(waiting):
            health = health_of(one.planned)
            if health.ready:
                on_ready(one)
                waiting.remove(one)
                continue
            name, code = one.planned.name, one.exit_code
            if code is not None:
                raise Unavailable(f"{name} ended with code {code}; {_last_words(folder, name)}")
            if time.monotonic() - one.started_s > START_S_MAX:
                raise Unavailable(
                    f"{name} is not ready after {START_S_MAX:.0f} s: "
                    f"{'; '.join(health.reasons)}; {_last_words(folder, name)}"
                )
        time.sleep(LOOK_S if waiting else 0)


def pause(name: str, process: Any) -> None:
    """SIGSTOP; returns when it stands. Raises `Refused` unless it runs."""
    if state_of(process) != "running":
        raise Refused(f"{name} is {state_of(process)}, so it cannot be paused")
    _send_to_all(process, signal.SIGSTOP)
    _await_state(name, process, ("paused",))


def resume(name: str, process: Any) -> None:
    """SIGCONT; returns when it runs. Raises `Refused` unless it was paused."""
    if state_of(process) != "paused":
        raise Refused(f"{name} is {state_of(process)}, so there is nothing to resume")
    _send_to_all(process, signal.SIGCONT)
    _await_state(name, process, ("running", "dead"))


def kill(name: str, process: Any) -> None:
    """SIGKILL, also to one that is paused; returns when it is dead."""
    for ended in _send_to_all(process, signal.SIGKILL):
        _await_state(name, ended, ("dead",))


def stop(
    processes: dict[str, Any],
    *,
    patience_s: float = STOP_S_MAX,
    on_stopped: Callable[[str, bool], None] = lambda name, killed: None,
) -> None:
    """Ends all: brokers, then storage nodes, then etcd, so that each finds what it needs.

    Paused ones are woken first: others may wait for them. One that does not end in time is killed,
    which is as safe and only makes the next start recover; `on_stopped` gets the name and whether
    it was killed.
    """
    for process in processes.values():
        _send_to_all(process, signal.SIGCONT)
    for kind in reversed(KINDS):
        names = [name for name in processes if kind_of(name) == kind]
        # A member of etcd that leads hands over first, and waits for seconds for one that stops at
        # the same time; one after the other they take a moment each.
        for group in [[name] for name in names] if kind == "etcd" else [names]:
            _stop_together({name: processes[name] for name in group}, patience_s, on_stopped)


def _stop_together(
    group: dict[str, Any], patience_s: float, on_stopped: Callable[[str, bool], None]
) -> None:
    for name, process in group.items():
        # For PostgreSQL SIGTERM means: when the last client has gone.
        _send(process, signal.SIGINT if kind_of(name) == "postgres" else signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    for name, process in group.items():
        killed = not _reaches(process, ("dead",), deadline - time.monotonic())
        if killed:
            kill(name, process)
        on_stopped(name, killed)


def kind_of(name: str) -> Kind:
    """The kind of a process by its name; what is none of ours is stopped with the brokers."""
    stem = name.rpartition("-")[0]
    return next((kind for kind in KINDS if kind == stem), "broker")


def last_lines(folder: ClusterFolder, name: str, *, lines: int) -> list[str]:
    """The end of a log; empty if there is none."""
    path = folder.log(name)
    if not path.exists():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        # A line of a log has some 200 bytes; four times as many are room for long ones.
        file.seek(max(0, size - lines * 800))
        return file.read().decode(errors="replace").splitlines()[-lines:]


def _last_words(folder: ClusterFolder, name: str) -> str:
    said = "\n".join(f"  {line}" for line in last_lines(folder, name, lines=_LOG_LINES))
    return f"the end of {folder.log(name)}:\n{said}" if said else "its log is empty"


def _send_to_all(process: Any, number: signal.Signals) -> list[Any]:
    """To a process and those below it, such as the sessions of PostgreSQL; returns them."""
    psutil = system_processes()
    if number == signal.SIGKILL:
        # One that stands makes no more of them.
        _send(process, signal.SIGSTOP)
    try:
        reached = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [process]
    for one in reached:
        _send(one, number)
    return reached


def _send(process: Any, number: signal.Signals) -> None:
    psutil = system_processes()
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise Refused(
            f"process {process.pid} belongs to {process.username()}, not to you"
        ) from error


def _reaches(process: Any, wanted: Iterable[State], seconds_max: float) -> bool:
    deadline = time.monotonic() + seconds_max
    while state_of(process) not in wanted:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_S / 5)
    return True


def _await_state(name: str, process: Any, wanted: tuple[State, ...]) -> None:
    if not _reaches(process, wanted, SIGNAL_S_MAX):
        raise Unavailable(
            f"{name} (process {process.pid}) is still {state_of(process)} {SIGNAL_S_MAX:.0f} s "
            "after the signal; is its disk stuck?"
        )
