"""A client of the HTTP API that a foreign generator makes of the OpenAPI document.

The generator (`openapi-python-client`) is installed by name and version into an environment of its
own, because it wants other versions of what we use; the client that it makes needs httpx and attrs,
which are here. Nothing of it is ours: what the document does not say, the client cannot do.
"""

import fcntl
import importlib
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

GENERATOR = "openapi-python-client==0.29.1"
#: Ignored by git, beside the packages of npm.
PLACE = Path(__file__).parent / "node_modules" / GENERATOR
#: Time for the first installation, from a slow mirror.
INSTALL_SECONDS_MAX = 180


class GeneratorMissing(Exception):
    """The generator could not be installed."""


def _program() -> Path:
    """The generator, installed once. Raises `GeneratorMissing`."""
    program = PLACE / "bin" / "openapi-python-client"
    PLACE.parent.mkdir(exist_ok=True)
    with (PLACE.parent / ".install-lock").open("w") as lock:
        # Several workers of one test run come here at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        venv.create(PLACE, with_pip=True, clear=True)
        words = [str(PLACE / "bin" / "pip"), "install", "--quiet", GENERATOR]
        try:
            done = subprocess.run(
                words, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise GeneratorMissing("pip install did not end in time") from error
        if done.returncode != 0:
            raise GeneratorMissing(done.stderr.decode(errors="replace")[-500:])
    return program


def generated_client(document: bytes, folder: Path, name: str) -> ModuleType:
    """The package that the generator makes of a document. Raises `GeneratorMissing`."""
    program = _program()
    given = folder / "openapi.json"
    given.write_bytes(document)
    words = [str(program), "generate", "--path", str(given), "--meta", "none"]
    words += ["--output-path", str(folder / name)]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)
