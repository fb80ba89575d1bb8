"""The folder of a cluster on this machine.

cluster.json        the plan; written before the first process starts
cluster.lock        locked by a command that starts or stops processes
<name>/             the data of one process
<name>.log          the log of that process
<name>.password     the password of PostgreSQL, as libpq reads it
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from dovetail.cli.local_cluster.plan import Plan
from dovetail.cli.program import program
from dovetail.durable_files import replace_file
from dovetail.errors import Damaged, NotFound, Unavailable

FOLDER_DEFAULT = Path("dovetail-cluster")

_PLAN = "cluster.json"
_LOCK = "cluster.lock"


class ClusterFolder:
    """Where a cluster lives; `path` is absolute, because processes are recognised by it."""

    def __init__(self, path: Path) -> None:
        self.given = path
        self.path = path.resolve()

    def data(self, name: str) -> Path:
        return self.path / name

    def log(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def password(self, name: str) -> Path:
        return self.path / f"{name}.password"

    @property
    def certificates(self) -> Path:
        """The cluster's own authority, and what it signed."""
        return self.path / "certificates"

    def open_log(self, name: str) -> BinaryIO:
        """The log of a process, to be written on at its end, by its owner alone."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.fdopen(os.open(self.log(name), flags, 0o600), "ab")

    def hint(self) -> str:
        """The option that names this folder, if it has to be named; begins with a space."""
        return "" if self.given == FOLDER_DEFAULT else f" --data-dir {self.given}"

    def find_plan(self) -> Plan | None:
        """The plan, or None if there is none yet. Raises `Damaged`."""
        path = self.path / _PLAN
        try:
            return msgspec.json.decode(path.read_bytes(), type=Plan)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.DecodeError as error:
            raise Damaged(
                f"{path} is not the plan of a cluster: {error}. `{program()} cluster "
                f"stop{self.hint()}` still ends its processes; restore the file, or start anew in "
                "another --data-dir"
            ) from error

    def plan(self) -> Plan:
        """The plan. Raises `NotFound` if there is no cluster here."""
        plan = self.find_plan()
        if plan is None:
            raise NotFound(
                f"there is no cluster in {self.path}; start one with `{program()} cluster "
                f"start{self.hint()}`, or name its folder with --data-dir"
            )
        return plan

    def write_plan(self, plan: Plan) -> None:
        """Replaces the plan; after a crash it is the old one or the new one."""
        content = msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"
        replace_file(self.path / _PLAN, content, mode=0o600)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other commands from starting or stopping processes. Raises `Unavailable`.

        A folder that was deleted while its processes run has nothing left to lock.
        """
        if not self.path.is_dir():
            yield
            return
        with (self.path / _LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Unavailable(
                    f"another command is starting or stopping the cluster in {self.path}; "
                    "try again when it is done"
                ) from error
            yield
