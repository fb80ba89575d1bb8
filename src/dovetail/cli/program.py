"""How this program was called, so that a command in a hint can be copied as it is."""

import shlex
import shutil
import sys
from pathlib import Path

NAME = "dovetail"


def program() -> str:
    """`dovetail` if a shell finds this very program by that name, else the way it was called."""
    called = Path(sys.argv[0])
    found = shutil.which(NAME)
    if found is not None and _is_this(Path(found), called):
        return NAME
    if called.name == NAME:
        return shlex.quote(str(_shorter(called)))
    if called.name == "__main__.py":
        return f"{shlex.quote(str(_shorter(Path(sys.executable))))} -m dovetail"
    return NAME


def _is_this(found: Path, called: Path) -> bool:
    if called.exists() and found.samefile(called):
        return True
    return called.name == "__main__.py" and found.parent == Path(sys.executable).parent


def _shorter(path: Path) -> Path:
    """Relative to the folder of the caller if it lies inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
