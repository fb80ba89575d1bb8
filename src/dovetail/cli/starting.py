"""What can keep `dovetail up` from starting, told with the flag and the setting that change it.

The folder is tried before the node starts; addresses can only be tried by taking them, so their
errors are read afterwards.
"""

import errno
import os
import pwd
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import DovetailError, InvalidSetting, Unavailable

if TYPE_CHECKING:
    from dovetail.node import Node
    from dovetail.settings import Settings

_OTHER_FOLDER = "choose another with --data-dir (node.data_dir)"


def prepare_folder(folder: Path) -> None:
    """Makes the data folder if it is not there. Raises `InvalidSetting` if it cannot be used."""
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
            f"the data folder {where} cannot be made by user {_user()}: {error.filename}: "
            f"{_reason(error)}; give that user the right, or {_OTHER_FOLDER}"
        ) from error
    except OSError as error:
        raise InvalidSetting(
            f"the data folder {where} cannot be made: {_reason(error)}; {_OTHER_FOLDER}"
        ) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidSetting(
            f"the data folder {where} cannot be written by user {_user()}; give that user the "
            f"right, or {_OTHER_FOLDER}"
        )


def error_of_address(error: OSError, settings: "Settings") -> DovetailError | None:
    """What `error` says about the address for Kafka clients; None if it is about something else."""
    host, port = settings.kafka.host, settings.kafka.port
    if isinstance(error, socket.gaierror):
        return InvalidSetting(
            f"--host {host} (kafka.host) is no address that this machine can find: "
            f"{_reason(error)}; give an address of this machine, such as 127.0.0.1 or 0.0.0.0"
        )
    if error.filename is not None:
        return None
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidSetting(
            f"--host {host} (kafka.host) is not an address of this machine; give one of its own, "
            "or listen on all with 0.0.0.0 and tell clients another with --advertised-host"
        )
    if error.errno == errno.EACCES:
        return InvalidSetting(
            f"--port {port} (kafka.port) may not be taken by user {_user()}; choose one from "
            "1024 on"
        )
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"{host}:{port} is in use already. Is another node running? Choose another port with "
            "--port (kafka.port); 0 takes any free one"
        )
    return None


@asynccontextmanager
async def http_with_flags(node: "Node", settings: "Settings") -> AsyncIterator[str]:
    """Serves HTTP; an address that cannot be taken is told with the flags of `up`."""
    from dovetail.console import http_of

    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(http_of(node, settings))
        except Unavailable as error:
            raise Unavailable(
                f"{error}.\nOn the command line: --http-port, 0 for any free one, or --no-http."
            ) from error
        yield url


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _user() -> str:
    """The name of the user, or the number of one without a name, as in some containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
