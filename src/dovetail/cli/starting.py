"""Why a node cannot start, with the flag and the setting that change it.

The folder is checked before the node starts. An address can only be checked by binding to it, so
its errors are explained afterwards.
"""

import errno
import os
import pwd
import socket
from pathlib import Path

from dovetail.backup.archive import MARK
from dovetail.cli.program import program
from dovetail.errors import DovetailError, InvalidSetting, Unavailable
from dovetail.settings import Settings

_OTHER_FOLDER = "choose another with --data-dir (node.data_dir)"


def prepare_folder(folder: Path) -> None:
    """Creates the data folder if it does not exist. Raises `InvalidSetting` if it is unusable."""
    where = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InvalidSetting(f"the data folder {where} is a file; {_OTHER_FOLDER}") from error
    except NotADirectoryError as error:
        raise InvalidSetting(
            f"the data folder {where} lies below a file; {_OTHER_FOLDER}"
        ) from error
    except PermissionError as error:
        raise InvalidSetting(
            f"the data folder {where} cannot be created by user {_user()}: {error.filename}: "
            f"{_reason(error)}; grant that user the right, or {_OTHER_FOLDER}"
        ) from error
    except OSError as error:
        raise InvalidSetting(
            f"the data folder {where} cannot be created: {_reason(error)}; {_OTHER_FOLDER}"
        ) from error

    if (folder / MARK).exists():
        raise InvalidSetting(
            f"the restore into {where} was interrupted; run `{program()} restore` again"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidSetting(
            f"the data folder {where} is not writable by user {_user()}; grant that user the "
            f"right, or {_OTHER_FOLDER}"
        )


def error_of_address(error: OSError, settings: Settings) -> DovetailError | None:
    """What `error` says about the address for Kafka clients; None if it is about something else."""
    host, port = settings.kafka.host, settings.kafka.port
    if isinstance(error, socket.gaierror):
        return InvalidSetting(
            f"--host {host} (kafka.host) cannot be resolved: {_reason(error)}; give an address of "
            "this machine, such as 127.0.0.1 or 0.0.0.0"
        )
    if error.filename is not None:
        return None
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidSetting(
            f"--host {host} (kafka.host) is not an address of this machine; give one that is, or "
            "listen on all with 0.0.0.0 and advertise another with --advertised-host"
        )
    if error.errno == errno.EACCES:
        return InvalidSetting(
            f"--port {port} (kafka.port) is not allowed for user {_user()}; choose a port from "
            "1024 on"
        )
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"{host}:{port} is in use already. Is another node running? Choose another port with "
            "--port (kafka.port); 0 takes any free port"
        )
    return None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _user() -> str:
    """The name of the user, or the number of one without a name, as in some containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
