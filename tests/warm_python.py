"""Python programs that start warm: forked from a process that has imported the product before.

    Popen([sys.executable, "-m", "dovetail", "up"], env=..., stdout=...)      as in `subprocess`
    run([sys.executable, "-c", "print(1)"], capture_output=True)              as well

Nine tenths of what a short-lived program costs are imports, and a run of the tests starts a
thousand of them. What comes out is a real process with its own memory, folder, environment and
streams: it can be killed, paused and waited for, and ends as every Python does.

A child of the test process, the *stem*, imports once, forks for each call and passes on how what it
forked has ended. A command that needs an interpreter of its own starts cold, by `subprocess`: one
with options for Python, on a terminal, or whose environment differs in what is read `_AT_START`.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.network_namespaces import set_namespace

ROOT = Path(__file__).parent.parent

#: Beginnings of the names of variables that are read when a Python starts, or imports.
_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GRPC_", "FORCE_COLOR", "TERMINAL_")
#: What is imported once; none of it starts a thread.
_MODULES = (
    *("dovetail.cli.app", "dovetail.cli.commands.up", "dovetail.cli.commands.node"),
    *("dovetail.cli.commands.topic", "dovetail.cli.commands.timeline_operating"),
    *("dovetail.cli.commands.relay", "dovetail.outbox", "dovetail.stream", "dovetail.timeline"),
    *("dovetail.teams", "dovetail.coordination.etcd"),
    *("confluent_kafka.admin", "typer.rich_utils", "rich.markdown", "rich.table", "rich.live"),
    *("sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql", "sqlalchemy.dialects.sqlite"),
    *("sqlalchemy.ext.asyncio", "asyncpg", "psycopg", "pymysql", "aiosqlite", "httpx", "psutil"),
    *("aetcd", "grpc", "uvloop", "uvicorn", "prometheus_client"),
)
_MESSAGE_BYTES_MAX = 192 * 1024
_NUMBER = struct.Struct("=i")


class _Program(NamedTuple):
    """What a forked process is to be. Its streams, and its network, come as descriptors."""

    flag: str
    what: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    new_session: bool


class Popen(subprocess.Popen):
    """`subprocess.Popen`; the stem forks what it can, and says how it ended."""

    #: From where the end of a warm program is read; None for a cold one.
    _told: int | None = None

    def _execute_child(self, *arguments: Any) -> None:
        given = dict(zip(_EXECUTE_CHILD, arguments, strict=True))
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        streams = [own if end == -1 else end for own, end in enumerate(ends)]
        program = _warm(given)
        if program is None or any(map(os.isatty, streams)):
            super()._execute_child(*arguments)
            return

        self.pid, self._told = _stem().fork(program, streams)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._told is None or self.returncode is not None:
            return super()._internal_poll(*arguments, **named)
        if self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """What the stem tells, in the place of the kernel."""
        if self._told is None:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not _is_readable(self._told):
            return 0, 0
        told = os.read(self._told, _NUMBER.size)
        os.close(self._told)
        assert told, "the stem has ended before what it forked"
        return self.pid, _NUMBER.unpack(told)[0]


def _is_readable(file: int) -> bool:
    """Also beyond the number of files that `select` knows."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


_EXECUTE_CHILD = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
#: What a call must not ask for, to be warm.
_PLAIN = {
    **dict.fromkeys(("executable", "preexec_fn", "gid", "gids", "uid")),
    **{"pass_fds": (), "shell": False, "umask": -1, "process_group": -1},
}


def run(
    command: list[Any],
    *,
    input: str | bytes | None = None,  # noqa: A002 - as `subprocess.run` has it
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **named: Any,
) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run`."""
    if input is not None:
        named["stdin"] = subprocess.PIPE
    if capture_output:
        named |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **named) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def _warm(given: Mapping[str, Any]) -> _Program | None:
    """What the call asks for, unless it needs an interpreter of its own."""
    command = given["args"]
    if isinstance(command, str | bytes | os.PathLike):
        return None
    words = [os.fsdecode(word) for word in command]
    environment = dict(os.environ if given["env"] is None else given["env"])
    plain = all(given[name] == value for name, value in _PLAIN.items())
    if not plain or words[0] != sys.executable or _at_start(environment) != _stem().environment:
        return None

    folder = os.path.abspath(given["cwd"] or ".")
    if words[1] in ("-m", "-c"):
        return _Program(*words[1:3], words[3:], folder, environment, given["start_new_session"])
    if words[1].endswith(".py"):
        return _Program("", words[1], words[2:], folder, environment, given["start_new_session"])
    return None


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    # A path is no hindrance: it is set anew.
    names = {name for name in environment if name.startswith(_AT_START)} - {"PYTHONPATH"}
    return {name: environment[name] for name in names}


class _Stem:
    """The process that forks, as the tests see it."""

    def __init__(self) -> None:
        self.environment = _at_start(os.environ)
        self._lock = threading.Lock()
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_python", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

        atexit.register(self._close)

    def _close(self) -> None:
        """The stem ends when the door is closed; what it has forked goes on."""
        self._door.close()
        self._process.wait()

    def fork(self, program: _Program, streams: list[int]) -> tuple[int, int]:
        """Returns the process, and from where its end will be read."""
        told, tells = os.pipe()
        network = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            with self._lock:
                socket.send_fds(
                    self._door, [json.dumps(program).encode()], [*streams, tells, network]
                )
                answer = self._door.recv(_NUMBER.size)
        finally:
            os.close(tells)
            os.close(network)
        assert answer, "the stem has ended"
        return _NUMBER.unpack(answer)[0], told


@functools.cache
def _stem() -> _Stem:
    return _Stem()


# In the stem


def _serve(door: socket.socket) -> _Program:
    """Forks for each message; returns in what it forked, which is to be the program."""
    waiting: dict[int, tuple[int, int]] = {}
    home = os.stat("/proc/self/ns/net").st_ino
    with selectors.DefaultSelector() as selector, door:
        selector.register(door, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not door:
                    _tell_end(*waiting.pop(key.fd))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                message, received, _, _ = socket.recv_fds(door, _MESSAGE_BYTES_MAX, 5)
                if not message:
                    raise SystemExit
                *streams, tells, network = received
                pid = os.fork()
                if pid == 0:
                    for each in (tells, *waiting, *(one for _, one in waiting.values())):
                        os.close(each)
                    _take(streams)
                    if os.fstat(network).st_ino != home:
                        set_namespace(network)
                    os.close(network)
                    return _Program(*json.loads(message))
                for each in (*streams, network):
                    os.close(each)
                ended = os.pidfd_open(pid)
                waiting[ended] = (pid, tells)
                selector.register(ended, selectors.EVENT_READ)
                door.send(_NUMBER.pack(pid))


def _tell_end(pid: int, tells: int) -> None:
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(tells, _NUMBER.pack(status))
    os.close(tells)


def _take(streams: list[int]) -> None:
    for own, given in enumerate(streams):
        os.dup2(given, own)
        os.close(given)


def _become(program: _Program) -> None:
    """Runs the program as a new Python would."""
    if program.new_session:
        os.setsid()
    os.chdir(program.folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    imported = _paths(os.environ)
    os.environ.clear()
    os.environ.update(program.environment)

    first = {"-m": program.folder, "-c": ""}.get(program.flag, os.path.dirname(program.what))
    given = _paths(os.environ)
    sys.path = [first, *given, *(each for each in sys.path[1:] if each not in imported + given)]
    sys.argv = [program.flag or program.what, *program.arguments]
    if program.flag == "-m":
        runpy.run_module(program.what, run_name="__main__", alter_sys=True)
    elif program.flag == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(program.what, main.__dict__)
    else:
        runpy.run_path(program.what, run_name="__main__")


def _paths(environment: Mapping[str, str]) -> list[str]:
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(each) for each in paths if each]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _name in _MODULES:
        importlib.import_module(_name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
